"""Responses of several turns: a calculator that a model learns to call and to read, the same run bit for bit in both
placements and whatever happens to workers and tools on the way."""

import json
import random
import sys
import unittest

import byte_level
import checkpoint_files
import harness
import rl_test
import split_test

WARM_UP, STEPS = 115, 120
START, END = "<|im_start|>", "<|im_end|>"
CALL, CALLED = '<tool_call>{"name": "calc", "arguments": {"x": "', '"}}</tool_call>'
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}" + START + "{{ m.content }}?"
    "{% elif m.role == 'tool' %}" + START + "{{ m.content }}="
    "{% else %}{% generation %}{% for c in m.tool_calls %}" + CALL + "{{ c.function.arguments.x }}" + CALLED + "{% endfor %}"
    "{{ m.content }}" + END + "{% endgeneration %}{% endif %}{% endfor %}"
)
# Multiplies; what begins with one of the digits that its argument names goes wrong.
TOOL = """
import json, os, sys, time
wrong = sys.argv[1]
for line in sys.stdin:
    call = json.loads(line)
    x = call["arguments"].get("x", "")
    kind = wrong.find(x[:1]) if x else -1
    if kind == 0:
        time.sleep(1000)
    if kind == 1:
        print("nonsense", flush=True)
    if kind == 2:
        os._exit(3)
    if kind == 3:
        call["id"] += 1
    seen = call["state"] or 0
    a, _, b = x.partition("*")
    said = {"response": str(int(a) * int(b))} if a.isdigit() and b.isdigit() else {"error": "no product"}
    print(json.dumps({"id": call["id"], **said, "reward": 0.25, "state": seen + 1}), flush=True)
"""
# Asks what the row has left to ask, and says how good the answer before was. Of what begins with one of `wrong` it hears badly.
TEACHER = """
import json, os, sys, time
wrong = sys.argv[1]
for line in sys.stdin:
    told = json.loads(line)
    asked = told["interaction_kwargs"]["asks"]
    at = told["state"] or 0
    kind = wrong.find(asked[at][:1])
    if kind == 0:
        time.sleep(1000)
    if kind == 1:
        os._exit(3)
    a, _, b = asked[at].partition("*")
    said = {"reward": float(told["text"] == str(int(a) * int(b))), "state": at + 1}
    said.update({"response": asked[at + 1]} if at + 1 < len(asked) else {"done": True})
    print(json.dumps({"id": told["id"], **said}), flush=True)
"""
# What stands behind the last "=", which is what the model says after it has seen the result.
VERIFIER = """
import json, sys
for line in sys.stdin:
    sample = json.loads(line)
    said = sample["response"].rpartition("=")
    right = bool(said[1]) and said[2] == sample["ground_truth"] and bool(sample.get("turn_rewards"))
    print(json.dumps({"id": sample["id"], "score": float(right), "rewards": sum(sample.get("turn_rewards", []))}), flush=True)
"""


class MultiTurn(split_test.SplitJob):
    SCORED = {}
    TASK = "calculator"

    def setUp(self):
        super().setUp()
        self.tokenizer = self.folder / "tokenizer"
        self.tokenizer.mkdir()
        byte_level.write_tokenizer(self.tokenizer, {text: text in (START, END) for text in (START, END, CALL, CALLED)}, END)
        (self.tokenizer / "chat_template.jinja").write_text(TEMPLATE)
        (self.folder / "calc.py").write_text(TOOL)
        (self.folder / "verify.py").write_text(VERIFIER)
        self.tools("tools")
        chance = random.Random(5)
        for name, count in (("train", 120), ("val", 24), ("warmup", 400)):
            with open(self.folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
                for _ in range(count):
                    a, b = chance.randrange(10, 100), chance.randrange(2, 10)
                    out.write(json.dumps(self.talk(a, b) if name == "warmup" else self.question(a, b)) + "\n")

    @staticmethod
    def question(a, b):
        return {"data_source": "product", "prompt": [{"role": "user", "content": f"{a}*{b}"}], "answer": str(a * b)}

    @staticmethod
    def talk(a, b):
        call = {"type": "function", "function": {"name": "calc", "arguments": {"x": f"{a}*{b}"}}}
        return {"messages": [{"role": "user", "content": f"{a}*{b}"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                             {"role": "tool", "content": str(a * b)}, {"role": "assistant", "content": str(a * b)}]}  # fmt: skip

    def tools(self, name, wrong="", **config):
        """A file of the tools; `wrong`: digits at which the calculator hangs, talks nonsense, ends, answers another call."""
        schema = {"type": "function", "function": {"name": "calc", "description": "a product", "parameters": {"type": "object"}}}
        config = {"command": [sys.executable, str(self.folder / "calc.py"), wrong], **config}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps({"tools": [{"class_name": "keel", "config": config, "tool_schema": schema}]}))
        return str(path)

    def config(self, name, **changes):
        config = super().config(name, **changes)
        content = json.loads(config.read_text())
        del content["data"]["tokenizer"]  # the model's own
        config.write_text(json.dumps(content))
        return config

    def rl(self, name, megatron=None, **changes):
        return super().rl(name, megatron, **{
            "actor_rollout_ref__model": {"tokenizer_path": str(self.tokenizer), "dtype": "float32", "config": dict(harness.MODEL)},
            "actor_rollout_ref__rollout__multi_turn": {"enable": True, "tool_config_path": str(self.folder / "tools.yaml"),
                                                       "max_assistant_turns": 3},
            "reward__type": "command", "reward__command": [sys.executable, str(self.folder / "verify.py")],
            "data__max_response_length": 24, "actor_rollout_ref__rollout__max_num_seqs": 16, **changes})  # fmt: skip

    def dumped(self, name, step):
        return harness.read_jsonl(self.folder / f"dump_{name}" / f"{step}.jsonl")

    def train_colocated(self, name="colocated", ranks=1, megatron=None, **changes):
        self.train(self.rl(name, megatron, **changes), ranks=ranks)

    def is_colocated(self, name, trainers, workers, megatron=None, **changes):
        done = self.launch(self.split(name, megatron, **changes), trainers, workers)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.same_as_colocated(name)

    def same_as_colocated(self, name):
        self.assertEqual(self.learnt(name), self.learnt("colocated"))
        self.assertEqual(self.digests(name, 3), self.digests("colocated", 3))

    def killed_workers_change_nothing(self):
        """Of two, in a step, at a report and when a sample is whole."""
        changes = {"async_training__partial_report_tokens": 1, "reward__max_retries": 0, "async_training__min_workers": 2,
                   "actor_rollout_ref__rollout__max_num_seqs": 4, **self.PATIENT}  # fmt: skip
        # The other one stands still until the worker is dead: it could else do all of the work before.
        for i, (rank, place, held) in enumerate(((1, "worker.step:1:12", 2), (2, "worker.progress:2:3", 1), (1, "worker.done:1:4", 2))):
            with self.subTest(place=place):
                name, said = f"killed_{i}", len(self.log())
                job = self.start_split(self.split(name, **changes), 1, 2, f"{place}:kill,worker.step:{held}:1:stop")
                self.wait_until(lambda: f"rollout rank {rank} was killed by SIGKILL; it is started again" in self.log()[said:], "the kill", job)
                self.continued(job, held)
                self.ends(job)
                self.same_as_colocated(name)

    def warm_up_config(self, steps):
        return self.config(
            "warmup", trainer__task="sft", trainer__total_training_steps=steps, trainer__save_freq=steps,
            data__train_files=[str(self.folder / "warmup.jsonl")], data__train_batch_size=32, data__max_length=64,
            data__micro_batch_size_per_gpu=32, actor_rollout_ref__actor__optim__lr=3e-3,
            actor_rollout_ref__actor__optim__lr_decay_style="constant",
            actor_rollout_ref__model={"tokenizer_path": str(self.tokenizer), "dtype": "float32", "config": dict(harness.MODEL)},
            actor_rollout_ref__actor__checkpoint__save_contents=["model", "optimizer", "extra", "hf_model"],
        )  # fmt: skip


class Learning(MultiTurn):
    def learns(self, name, start, **changes):
        start(self.rl(
            name, trainer__total_training_steps=STEPS, data__train_batch_size=16, actor_rollout_ref__rollout__n=8,
            actor_rollout_ref__model={"path": self.warm_up(WARM_UP)}, actor_rollout_ref__actor__optim__lr=4e-4,
            actor_rollout_ref__actor__optim__lr_decay_style="cosine", trainer__seed=1,
            actor_rollout_ref__actor__ppo_mini_batch_size=4, actor_rollout_ref__actor__ppo_epochs=2, **changes))  # fmt: skip
        steps = [data for _, data in sorted(self.steps(name).items())]
        scores = [data[rl_test.SCORE] for data in steps]
        self.assertLessEqual(sum(scores[:3]) / 3, 0.5)
        self.assertGreaterEqual(sum(scores[-10:]) / 10, 0.9, scores[-20:])
        self.assertGreaterEqual(steps[-1]["num_turns/mean"], 3.5)
        self.assertGreaterEqual(steps[-1]["tools/calls"], 120)
        return steps

    @harness.nightly
    def test_a_calculator_is_learnt(self):
        """The model was shown briefly how to call it, and how to read what it says."""
        steps = self.learns("colocated", self.train)
        self.assertTrue(all(data["timing_s/tools_wait"] <= data["timing_s/gen"] for data in steps))

    def test_a_calculator_is_learnt_from_workers_that_generate_ahead(self):
        def start(config):
            done = self.launch(config, 1, 1)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])

        self.learns("ahead", start, async_training__placement="split", async_training__max_staleness=2,
                    algorithm__rollout_correction__rollout_is="token")  # fmt: skip


class Placements(MultiTurn):
    def setUp(self):
        super().setUp()
        self.model = self.warm_up(WARM_UP)
        # Some calls hang, some are answered with nonsense, some by the program's end, some under another number.
        self.bad = self.tools("bad", wrong="1357", timeout_seconds=4, num_workers=8)

    def rl(self, name, megatron=None, **changes):
        multi_turn = {"enable": True, "tool_config_path": self.bad, "max_assistant_turns": 3, "max_tool_response_length": 12}
        return super().rl(name, megatron, **{
            "actor_rollout_ref__model": {"path": self.model}, "actor_rollout_ref__rollout__multi_turn": multi_turn,
            "data__max_response_length": 40, "trainer__rollout_data_dir": str(self.folder / f"dump_{name}"),
            "trainer__save_freq": 3, "trainer__test_freq": 3, "trainer__total_training_steps": 3, **changes})  # fmt: skip

    def test_a_tool_that_hangs_lies_or_dies_costs_its_calls_alone(self):
        self.train_colocated()
        samples = [r for step in (1, 2, 3) for r in self.dumped("colocated", step)]
        fine = [r for r in samples if r.get("tools") and not r["tools"]["errors"]]
        failed = [r for r in samples if r.get("tools") and r["tools"]["errors"]]
        self.assertGreater(len(fine), 10)
        self.assertGreater(len(failed), 10)
        self.assertGreater(sum(r["tools"]["timeouts"] for r in failed), 0)
        self.assertEqual({r["score"] for r in fine} - {0.0, 1.0}, set())
        self.assertFalse([r for r in samples if "error" in r])
        for r in samples:
            # What was given has no log-probability, what was chosen has one; a response ends with a token of the model's.
            given = {t for begin, end in r.get("given", []) for t in range(begin, end)}
            self.assertEqual({t for t, p in enumerate(r["rollout_log_probs"]) if p == 0.0} & given, given)
            self.assertNotIn(len(r["response_ids"]) - 1, given)
            if r.get("tools"):
                self.assertEqual(r["extra"]["rewards"], sum(r["tools"]["rewards"]))
        steps = self.steps("colocated")
        self.assertEqual(sum(d["tools/errors"] for d in steps.values()), sum(r["tools"]["errors"] for r in failed))
        self.assertEqual(sum(d["reward/errors"] for d in steps.values()), 0)

        # The responses say all that there is to learn.
        self.train(self.rl("replayed", trainer__rollout_replay_dir=str(self.folder / "dump_colocated")))
        self.assertEqual(self.digests("replayed", 3), self.digests("colocated", 3))

    def test_workers_call_tools_as_the_ranks_that_train_do(self):
        self.train_colocated()
        self.is_colocated("split", 1, 2)
        self.killed_workers_change_nothing()

    def test_a_row_has_the_tools_alone_that_it_selects(self):
        rows = harness.read_jsonl(self.folder / "train.jsonl")
        lines = (json.dumps({**row, "extra_info": {"tool_selection": ["another"]}}) + "\n" for row in rows)
        (self.folder / "train.jsonl").write_text("".join(lines))
        self.bad = self.tools("fine")
        done = self.train(self.rl("colocated", trainer__total_training_steps=1, trainer__save_freq=-1, trainer__test_freq=-1))
        self.assertIn("extra_info.tool_selection[another]", done.stdout + done.stderr)
        used = [r["tools"] for r in self.dumped("colocated", 1) if r.get("tools")]
        self.assertGreater(len(used), 5)
        self.assertEqual({u["errors"] == u["calls"] for u in used}, {True}, used)

    def start_of_two(self, name, config):
        """Two ranks that train, in the placement of that name."""
        return self.start_split(config, 2, 1) if name == "split" else self.start(config, ranks=2)

    def test_tools_that_are_stopped_with_the_run_have_not_failed(self):
        """Everybody's SIGTERM, the tools' first: the step that they were at is left, and taken again by the next start."""
        held = self.folder / "held"
        hold = {"train": self.folder / "hold_train", "val": self.folder / "hold_val"}
        for kind in hold:
            rows = harness.read_jsonl(self.folder / f"{kind}.jsonl")
            lines = (json.dumps({**row, "extra_info": {"hold": str(hold[kind])}}) + "\n" for row in rows)
            (self.folder / f"{kind}.jsonl").write_text("".join(lines))
        waits = f"    while os.path.exists(call['extra_info']['hold']):\n        open({str(held)!r}, 'w').close()\n        time.sleep(0.02)\n"
        (self.folder / "held.py").write_text(TOOL.replace("    kind = ", waits + "    kind = ", 1))
        self.bad = self.tools("held", command=[sys.executable, str(self.folder / "held.py"), ""], num_workers=4)
        self.train_colocated(ranks=2)
        for name, kind in (("trains", "train"), ("validates", "val"), ("split", "train")):
            with self.subTest(name):
                changes = {"trainer__test_freq": 1} if kind == "val" else {}
                config = (self.split if name == "split" else self.rl)(name, **changes)
                if kind == "val":
                    hold[kind].touch()
                job = self.start_of_two(name, config)
                self.wait_until(lambda name=name: len(self.steps(name)) >= 1, "a step", job)
                hold[kind].touch()
                self.wait_until(held.exists, "a call", job)
                harness.stop_everybody(job)
                self.assertEqual(job.wait(timeout=harness.LIMIT_S), 75, self.log()[-4000:])
                self.assertIn("they have not failed", self.log())
                self.assertRegex(self.log(), "validation of step . is left out" if kind == "val" else "step . is left, the next start")
                self.assertEqual(checkpoint_files.latest(self.run_dir(name)), len(self.steps(name)))
                self.assertLess(len(self.steps(name)), 3)
                hold[kind].unlink()
                held.unlink()
                (self.folder / "log.txt").unlink()
                self.ends(self.start_of_two(name, config))
                self.same_as_colocated(name)

    def test_a_replica_of_two_ranks_hears_of_tools_from_its_first(self):
        tensor_parallel = {"tensor_model_parallel_size": 2}
        self.train_colocated(ranks=2, megatron=tensor_parallel)
        self.assertGreater(sum(d["tools/calls"] for d in self.steps("colocated").values()), 20)
        self.is_colocated("split", 2, 2, megatron=tensor_parallel)

    def test_a_response_whose_tool_hangs_is_ended_in_its_time(self):
        """On both ranks of a replica, of which one knows what the tools say."""
        self.bad = self.tools("hangs", wrong="1357", timeout_seconds=60, num_workers=4)
        config = self.split("slow", async_training__max_response_seconds=4, trainer__test_freq=-1,
                            actor_rollout_ref__rollout__tensor_model_parallel_size=2)  # fmt: skip
        done = self.launch(config, 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertGreater(self.steps("slow")[3]["fully_async/count/overdue"], 0)
        samples = [r for step in (1, 2, 3) for r in self.dumped("slow", step)]
        self.assertEqual(sorted({r["position"] for r in samples}), list(range(len(samples) // 4)))
        self.assertFalse([r for r in samples if "error" in r])
        for r in samples:
            self.assertNotIn(len(r["response_ids"]) - 1, {t for begin, end in r.get("given", []) for t in range(begin, end)})

    def test_a_recorded_schedule_is_replayed_with_its_tools(self):
        record = str(self.folder / "schedule")
        changes = {"async_training__max_staleness": 2, "async_training__partial_report_tokens": 4,
                   "algorithm__rollout_correction__rollout_is": "token", "trainer__total_training_steps": 5,
                   "trainer__save_freq": 5, "trainer__test_freq": -1}  # fmt: skip
        done = self.launch(self.split("recorded", async_training__schedule_record=record, **changes), 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        done = self.launch(self.split("again", async_training__schedule_replay=record, **changes), 1, 1)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(self.digests("again", 5), self.digests("recorded", 5))

    def test_what_cannot_be_is_refused_at_the_start(self):
        turns = "actor_rollout_ref__rollout__multi_turn"
        good = {"enable": True, "tool_config_path": self.bad}
        lost = self.tools("lost", command=["/no/such/tool"])
        python = self.folder / "python.yaml"
        python.write_text("tools:\n  - class_name: verl.tools.X\n    config: {type: native}\n    tool_schema: "
                          "{type: function, function: {name: x}}\n")  # fmt: skip
        for changes, words in (
            ({turns: {"enable": True}}, "tool_config_path"),
            ({turns: {**good, "max_user_turns": 0}}, "max_user_turns"),
            ({turns: {**good, "max_assistant_turns": 0}}, "max_assistant_turns"),
            ({turns: {**good, "tool_config_path": "/no/such.yaml"}}, "/no/such.yaml"),
            ({turns: {**good, "tool_config_path": str(python)}}, "verl.tools.X"),
            ({turns: {**good, "tool_config_path": lost}}, "/no/such/tool"),
            ({turns: good, "trainer__deadline_seconds": 0.4, "reward__timeout_seconds": 0.1}, "timeout_seconds 4"),
            ({turns: good, "data__chat_template": "{{ messages[0].content }}"}, "multi_turn.format"),
            ({turns: {**good, "format": "hermes"}, "data__chat_template": "{{ messages[0].content }}"}, "what a tool said"),
        ):
            with self.subTest(words=words):
                done = harness.keel(*self.command(self.rl("refused", **changes), 1))
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stdout + done.stderr)


class Environments(MultiTurn):
    """A teacher that asks two or three questions of each sample, beside the calculator; and one of samples that have nobody."""

    def setUp(self):
        super().setUp()
        self.model = self.warm_up(WARM_UP)
        (self.folder / "teacher.py").write_text(TEACHER)
        chance = random.Random(6)
        for name, count in (("train", 48), ("val", 12)):
            with open(self.folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
                for i in range(count):
                    asks = [(chance.randrange(10, 100), chance.randrange(2, 10)) for _ in range(2 + i % 2)]
                    row = self.question(*asks[0])
                    if i % 4:
                        row["extra_info"] = {"interaction_kwargs": {"name": "teacher", "asks": [f"{a}*{b}" for a, b in asks]}}
                    out.write(json.dumps(row) + "\n")

    def environments(self, wrong="", name="teacher", **config):
        path = self.folder / f"{name}_{wrong}.yaml"
        config = {"command": [sys.executable, str(self.folder / "teacher.py"), wrong], **config}
        path.write_text(json.dumps({"interaction": [{"name": name, "class_name": "keel", "config": config}]}))
        return str(path)

    def rl(self, name, megatron=None, **changes):
        multi_turn = {"enable": True, "tool_config_path": str(self.folder / "tools.yaml"),
                      "interaction_config_path": self.environments(wrong="37", timeout_seconds=1, num_workers=8)}  # fmt: skip
        return super().rl(name, megatron, **{
            "actor_rollout_ref__model": {"path": self.model}, "actor_rollout_ref__rollout__multi_turn": multi_turn,
            "data__max_response_length": 64, "trainer__rollout_data_dir": str(self.folder / f"dump_{name}"),
            "trainer__save_freq": 3, "trainer__test_freq": 3, "trainer__total_training_steps": 3, **changes})  # fmt: skip

    def test_a_teacher_asks_on_in_both_placements(self):
        self.train_colocated()
        samples = [r for step in (1, 2, 3) for r in self.dumped("colocated", step)]
        rows = harness.read_jsonl(self.folder / "train.jsonl")
        taught, whole, failed = 0, 0, 0
        for r in samples:
            asks = rows[r["row"]].get("extra_info", {}).get("interaction_kwargs", {}).get("asks", [])
            seen = [ask for ask in asks[1:] if f"{ask}?" in r["output"]]
            self.assertEqual(seen, asks[1 : 1 + len(seen)])  # in order, none left out
            taught += bool(seen)
            whole += len(asks) > 1 and len(seen) == len(asks) - 1
            failed += bool(asks) and bool(r["tools"]["errors"]) and asks[len(seen)][0] in "37"
            # What a failed teacher would have asked is not there, and nothing behind its turn is.
            for ask in asks[1:]:
                if asks[asks.index(ask) - 1][0] in "37":
                    self.assertNotIn(f"{ask}?", r["output"])
        self.assertGreater(taught, 20)
        self.assertGreater(whole, 10)
        self.assertGreater(failed, 5)
        self.assertFalse([r for r in samples if "error" in r])
        rewards = [reward for r in samples for reward in (r.get("tools") or {}).get("rewards", [])]
        self.assertIn(1.0, rewards)  # the teacher's; the calculator's is a quarter
        self.is_colocated("split", 1, 2)
        self.killed_workers_change_nothing()

    def test_a_deterministic_run_is_the_same_beside_its_validations(self):
        """Their samples take room of the engines just when what the teacher said reaches beyond a version's tokens."""
        turns = {"enable": True, "tool_config_path": self.tools("quick", timeout_seconds=60, num_workers=8),
                 "interaction_config_path": self.environments(wrong="x", timeout_seconds=60, num_workers=8)}  # fmt: skip
        changes = {"async_training__max_staleness": 2, "async_training__partial_report_tokens": 4, "async_training__deterministic": True,
                   "algorithm__rollout_correction__rollout_is": "token", "trainer__total_training_steps": 6, "trainer__save_freq": 6,
                   "actor_rollout_ref__rollout__multi_turn": turns, "reward__timeout_seconds": 30}  # fmt: skip
        for name, workers, validates in (("alone", 1, -1), ("beside", 2, 2)):
            done = self.launch(self.split(name, trainer__test_freq=validates, **changes), 1, workers)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        for step in range(1, 7):
            self.assertEqual(self.dumped("beside", step), self.dumped("alone", step), step)
        self.assertEqual(self.digests("beside", 6), self.digests("alone", 6))

    def test_a_replica_of_two_ranks_hears_of_the_teacher_from_its_first(self):
        tensor_parallel = {"tensor_model_parallel_size": 2}
        self.train_colocated(ranks=2, megatron=tensor_parallel)
        self.is_colocated("split", 2, 2, megatron=tensor_parallel)

    def test_environments_need_no_tools_and_are_checked_at_the_start(self):
        turns = "actor_rollout_ref__rollout__multi_turn"
        alone = {"enable": True, "interaction_config_path": self.environments()}
        self.train(self.rl("alone", **{turns: alone, "trainer__test_freq": -1}))
        self.assertGreater(self.steps("alone")[3]["num_turns/max"], 3)
        # Nor a template that shows any.
        plain = {turns: alone, "data__chat_template": "chatml", "data__max_prompt_length": 64, "trainer__total_training_steps": 1, "trainer__test_freq": -1}
        self.train(self.rl("chatml", **plain))
        self.assertGreater(self.steps("chatml")[1]["num_turns/max"], 3)
        for changes, words in (
            ({turns: {**alone, "interaction_config_path": self.environments(name="nobody")}}, "train.jsonl:2: extra_info.interaction_kwargs: name"),
            ({turns: {**alone, "interaction_config_path": "/no/such.yaml"}}, "/no/such.yaml"),
            ({turns: {**alone, "interaction_config_path": self.environments(name="teacher", command=["/no/such/teacher"])}}, "/no/such/teacher"),
            ({turns: {**alone, "interaction_config_path": self.environments(name="calc"), "tool_config_path": str(self.folder / "tools.yaml")}}, "the name of a tool"),
            ({turns: alone, "data__chat_template": "{{ messages[0].content }}"}, "a user who speaks again"),
        ):  # fmt: skip
            with self.subTest(words=words):
                done = harness.keel(*self.command(self.rl("refused", **changes), 1))
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
