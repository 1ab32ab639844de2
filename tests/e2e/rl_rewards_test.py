"""What a real RL run does with verifiers that fail, with filters of the rollout, and with GSM8K's questions."""

import http.server
import json
import statistics
import sys
import threading
import unittest

import harness
from rl_test import GAP, SCORE, RlJob

# Answers each line by `body`, which has the sample x and its place n.
PROGRAM = """
import sys, json, time
for n, line in enumerate(sys.stdin):
    x = json.loads(line)
    {body}
"""
RIGHT = "print(json.dumps({'id': x['id'], 'score': n % 3}), flush=True)"
# A number of the response.
SOME = "print(json.dumps({'id': x['id'], 'score': sum(x['response'].encode()) % 7 / 7}), flush=True)"
SOME_FAIL = "s = sum(x['response'].encode()); print(json.dumps({'id': x['id'], **({'score': s % 7 / 7} if s % 3 else {'error': 'odd'})}), flush=True)"
FAILS = "print(json.dumps({'id': x['id'], 'error': 'no unit test \\x1b[31m'}), flush=True)"


class Busy(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(503, "busy")

    def log_message(self, *_):
        pass


class Small(RlJob):
    """Two prompts with two samples each, two steps."""

    def small(self, name, **changes):
        return self.rl(
            name,
            **{
                "trainer__total_training_steps": 2, "trainer__log_freq": 1, "data__train_batch_size": 2,
                "actor_rollout_ref__rollout__n": 2, "data__val_files": [], "reward__max_retries": 0,
                **changes,
            },
        )  # fmt: skip

    def program(self, body):
        path = self.folder / f"verifier{len(list(self.folder.iterdir()))}.py"
        path.write_text(PROGRAM.format(body=body))
        return {"reward__type": "command", "reward__command": [sys.executable, str(path)]}

    def run_of(self, config, ranks=1):
        done = harness.keel(*self.command(config, ranks))
        return done.returncode, done.stdout + done.stderr


class Replays(Small):
    def test_a_dump_that_is_not_whole_or_of_another_model_is_refused(self):
        dump = self.folder / "dump"
        self.train(self.small("dumped", trainer__rollout_data_dir=str(dump)))
        step = dump / "2.jsonl"
        whole = [json.loads(line) for line in step.read_text().splitlines()]
        outside = [{**whole[0], "response_ids": [100000] * len(whole[0]["response_ids"])}, *whole[1:]]
        below = [{**whole[0], "prompt_ids": [-1]}, *whole[1:]]
        for name, rows, text in [
            ("cut", whole[:-1], "3 responses to 2 prompts, expected 2 to each of 2"),
            ("twice", [*whole, whole[0]], "stands twice"),
            ("vocabulary", outside, "token 100000 is outside the model's vocabulary"),
            ("negative", below, "prompt_ids: -1 is no token id"),
            ("no prompt", [{**whole[0], "prompt_ids": []}, *whole[1:]], "prompt_ids: no tokens"),
        ]:
            with self.subTest(name):
                step.write_text("".join(json.dumps(row) + "\n" for row in rows))
                code, said = self.run_of(self.small(f"replay-{name}", trainer__rollout_replay_dir=str(dump)))
                self.assertEqual(code, 65, said[-2000:])
                self.assertIn(f"trainer.rollout_replay_dir, on rank 0: {step}", said)
                self.assertIn(text, said)


class Generation(Small):
    """What the engine cannot generate is no failure of a verifier."""

    def test_a_cache_that_does_not_hold_prompt_and_response_is_refused_at_the_start(self):
        # 768 bytes a token: 1365 tokens in a MiB.
        model = {**harness.MODEL, "max_position_embeddings": 4096}
        changes = {"actor_rollout_ref__model__config": model, "actor_rollout_ref__rollout__kv_cache_megabytes": 1}
        fits = self.small("fits", **changes, data__max_prompt_length=1346)
        self.assertEqual(self.run_of(fits)[0], 0)
        code, said = self.run_of(self.small("small", **changes, data__max_prompt_length=1364))
        self.assertEqual(code, 78, said[-2000:])
        for text in ("kv_cache_megabytes", "data.max_prompt_length 1364", "data.max_response_length 6"):
            self.assertIn(text, said)
        self.assertEqual(self.steps("small"), {})

    def test_logits_that_are_not_finite_end_the_run_by_that_name(self):
        # As RIGHT, but whichever worker is asked: the same training every time.
        scores = self.program("print(json.dumps({'id': x['id'], 'score': sum(map(ord, x['response'])) % 3}), flush=True)")
        optim = {"actor_rollout_ref__actor__optim__lr": 1e12, "actor_rollout_ref__actor__optim__lr_warmup_steps": 0}
        config = self.small("huge", **optim, **scores, reward__on_error="zero_always", trainer__total_training_steps=8)
        code, said = self.run_of(config, ranks=2)
        self.assertEqual(code, 65, said[-2000:])
        self.assertRegex(said, "no response to row [0-9]+ could be generated with weight version [0-9]+: .*logit")
        self.assertNotIn("no score", said)
        self.assertIn(1, self.steps("huge"))


class Critic(Small):
    def test_a_critic_that_never_learns_ends_the_run(self):
        # Its returns overflow while the actor waits for it: nobody counted that.
        scores = self.program("print(json.dumps({'id': x['id'], 'score': 1e30}), flush=True)")
        config = self.small(
            "critic", **scores, algorithm__adv_estimator="gae", trainer__critic_warmup=100,
            trainer__max_consecutive_skips=3, trainer__total_training_steps=8,
        )  # fmt: skip
        code, said = self.run_of(config)
        self.assertEqual(code, 65, said[-2000:])
        self.assertIn("was not finite in 3 updates in a row", said)
        self.assertEqual([data["critic/skipped_updates"] for _, data in sorted(self.steps("critic").items())], [1, 1, 1])


# verl's signature; scores what a rule of Keel scores, and says besides how long the response is.
FUNCTION = """
import os, sys

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    print("scoring", repr(solution_str))
    {body}
    return {{"score": float(solution_str.strip() == ground_truth) + bonus, "length": len(solution_str), "pred": solution_str}}
"""


class PythonFunctions(Small):
    def function(self, body="pass", **keys):
        path = self.folder / f"reward{len(list(self.folder.iterdir()))}.py"
        path.write_text(FUNCTION.format(body=body))
        return {"custom_reward_function": {"path": str(path), **keys}, "python": sys.executable}

    def rewarded(self, name, reward, **changes):
        """The dumped rows of two steps, the metrics, and what was said."""
        dump = self.folder / f"dump_{name}"
        config = self.small(name, trainer__rollout_data_dir=str(dump), reward={"max_retries": 0, **reward}, **changes)
        code, said = self.run_of(config)
        self.assertEqual(code, 0, said[-3000:])
        return [harness.read_jsonl(dump / f"{step}.jsonl") for step in (1, 2)], self.steps(name), said

    def test_a_function_scores_as_the_rule_does_and_its_numbers_are_metrics(self):
        rule, _, _ = self.rewarded("rule", {"type": "exact"})
        rows, metrics, said = self.rewarded("function", self.function(reward_kwargs={"bonus": 0.5}), trainer__test_freq=1,
                                            data__val_files=[str(self.folder / "val.jsonl")])  # fmt: skip
        texts = lambda rows: [r["response_ids"] for r in rows]
        self.assertEqual(texts(rows[0]), texts(rule[0]))
        self.assertEqual([r["score"] for r in rows[0]], [r["score"] + 0.5 for r in rule[0]])
        for step in (1, 2):
            lengths = [r["extra"]["length"] for r in rows[step - 1]]
            self.assertAlmostEqual(metrics[step]["reward/length/mean"], sum(lengths) / len(lengths))
            self.assertEqual(metrics[step]["reward/errors"], 0)
        self.assertIn(f"reward from compute_score of {self.folder}/reward", said)
        self.assertIn(f"run by {sys.executable} in 2 processes a rank", said)
        self.assertIn("reward.python " + sys.executable + ": scoring", said)
        validations = [r["data"] for r in harness.read_jsonl(self.run_dir("function") / "metrics.jsonl") if "val-core/all/reward/mean" in r["data"]]
        self.assertEqual(len(validations), 2)
        self.assertIn("val-aux/copy/length/mean@1", validations[0])

    def test_several_rewards_are_summed_by_weight_and_told_apart(self):
        functions = [{"name": "right", "type": "exact"}, {"name": "mine", "weight": -0.25, **self.function(reward_kwargs={"bonus": 2})}]
        rows, metrics, said = self.rewarded("sum", {"functions": functions, "timeout_seconds": 20})
        for step in (1, 2):
            extras = [r["extra"] for r in rows[step - 1]]
            for row in rows[step - 1]:
                self.assertAlmostEqual(row["score"], row["extra"]["right"] - 0.25 * row["extra"]["mine"])
                self.assertEqual(row["extra"]["mine"], row["extra"]["right"] + 2)
            for name in ("right", "mine", "mine/length"):
                self.assertAlmostEqual(metrics[step][f"reward/{name}/mean"], sum(e[name] for e in extras) / len(extras))
        self.assertIn("reward mine (weight -0.25) from compute_score", said)

    def test_calls_that_end_their_child_are_errors_of_their_samples(self):
        body = "os._exit(3) if len(solution_str) % 2 else None"
        rows, metrics, said = self.rewarded("dies", self.function(body), reward__on_error="exclude_always")
        failed = [len(row["output"]) % 2 == 1 for row in rows[0]]
        self.assertEqual(["error" in row for row in rows[0]], failed)
        self.assertEqual(metrics[1]["reward/errors"], sum(failed))
        self.assertTrue(any(failed))
        self.assertIn("with 1 of 1 results missing", said)

    def test_what_cannot_run_is_refused_on_all_ranks_at_the_start(self):
        broken = self.folder / "broken.py"
        broken.write_text("import no_such_module\n")
        for reward, text, code in (
            ({"custom_reward_function": {"path": str(broken)}, "python": sys.executable}, "ModuleNotFoundError: No module named 'no_such_module'", 78),
            (self.function(name="score"), "has no score", 78),
            ({"custom_reward_function": {"path": str(self.folder / "none.py")}}, "none.py: expected a Python file that can be read", 78),
            ({"functions": [{"name": "a", "type": "http"}]}, "reward.functions[0].url is not given", 78),
            ({"type": "http", "url": "http://127.0.0.1:9/", "bearer_token_env": "KEEL_NO_SUCH_TOKEN"}, "KEEL_NO_SUCH_TOKEN is not set", 78),
        ):  # fmt: skip
            with self.subTest(text):
                config = self.small("refused", reward=reward)
                found, said = self.run_of(config, ranks=2)
                self.assertEqual(found, code, said[-2000:])
                self.assertIn(text, said)
                self.assertEqual(self.steps("refused"), {})
        config = self.small("validated", reward={"custom_reward_function": {"path": str(self.folder / "none.py")}})
        done = harness.keel("config", "validate", config)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("reward.custom_reward_function.path", done.stderr)


class FailingVerifiers(Small):
    def test_each_way_to_fail_ends_the_run_and_says_why(self):
        plain = self.folder / "plain.txt"
        plain.write_text("not a program\n")
        busy = http.server.HTTPServer(("127.0.0.1", 0), Busy)
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        self.addCleanup(busy.server_close)
        self.addCleanup(busy.shutdown)
        command = lambda *words: {"reward__type": "command", "reward__command": list(words)}
        http_at = lambda port: {"reward__type": "http", "reward__url": f"http://127.0.0.1:{port}/"}
        at_start = {
            "no such program": (command("/no/such/verifier"), ["/no/such/verifier", "correct reward.command"]),
            "shell characters": (command("sh -c 'touch x'"), ["sh -c 'touch x'", "correct reward.command"]),
            "not executable": (command(str(plain)), [str(plain), "make the file executable"]),
            "closed port": (http_at(harness.free_port()), ["Connection refused", "start the service"]),
        }
        in_step_1 = {
            "dies": (command(sys.executable, "-c", "raise SystemExit(3)"), ["results missing"]),
            "NaN": (self.program("print('{\"id\": %d, \"score\": NaN}' % x['id'], flush=True)"), ["NaN"]),
            "wrong ids": (self.program("print('{\"id\": -5, \"score\": 1}', flush=True)"), ["id -5, which was not asked for"]),
            "long lines": (self.program("print('z' * 9000000, flush=True)"), ["a line of more than"]),
            "times out": ({**self.program("time.sleep(600)"), "reward__timeout_seconds": 0.5}, ["reward.timeout_seconds"]),
            "its own errors": (self.program(FAILS), ["no unit test \\x1b[31m"]),
            "status 503": (http_at(busy.server_port), ["status 503"]),
        }
        for way, (changes, texts) in {**at_start, **in_step_1}.items():
            with self.subTest(way):
                name = way.replace(" ", "_")
                code, said = self.run_of(self.small(name, **changes))
                self.assertEqual(self.steps(name), {}, said[-2000:])
                for text in texts:
                    self.assertIn(text, said)
                if way in at_start:
                    self.assertEqual(code, 78, said[-2000:])
                    continue
                self.assertEqual(code, 69, said[-2000:])
                self.assertIn("none of the 4 responses of step 1 has a score", said)
                self.assertIn("zero_always", said)
                [warning] = [line for line in said.splitlines() if "no score for 4 of the 4 responses of step 1" in line]
                self.assertIn(texts[0], warning)
                self.assertLess(len(warning), 1000)

    def test_a_filter_by_a_number_that_nobody_gives_is_refused(self):
        given = "print(json.dumps({'id': x['id'], 'score': 0, 'acc': n % 2, 'reward': 1}), flush=True)"
        for metric, code, text in (("acc", 0, ""), ("accuracy", 65, "gave no number accuracy"), ("reward", 65, "0 of 2 groups")):
            with self.subTest(metric):
                config = self.small(
                    f"filter-{metric}", algorithm__filter_groups={"enable": True, "metric": metric, "max_num_gen_batches": 4},
                    reward__num_workers=1, **self.program(given),
                )  # fmt: skip
                found, said = self.run_of(config)
                self.assertEqual(found, code, said[-2000:])
                self.assertIn(text, said)

    def test_all_ranks_refuse_together_at_the_start(self):
        code, said = self.run_of(self.small("two", reward__type="command", reward__command=["/no/such/verifier"]), ranks=2)
        self.assertEqual(code, 78, said[-2000:])
        self.assertIn("the verifier of rank 0: start reward.command '/no/such/verifier'".replace("'", ""), said.replace("'", ""))
        self.assertNotIn("lost a peer", said)

    def test_in_so_many_words_it_goes_on(self):
        for policy in ("zero_always", "exclude_always"):
            with self.subTest(policy):
                code, said = self.run_of(self.small(policy, reward__on_error=policy, **self.program(FAILS)))
                self.assertEqual(code, 0, said[-2000:])
                for _, data in sorted(self.steps(policy).items()):
                    self.assertEqual((data["reward/errors"], data["reward/samples"], data.get(SCORE)), (4, 4, 0.0 if policy == "zero_always" else None))
                self.assertEqual(len(self.steps(policy)), 2)
                self.assertEqual(said.count("errors 4/4"), 2, said[-3000:])
                self.assertEqual(said.count("no score for"), 1, said[-3000:])

    def test_some_errors_are_said_and_counted(self):
        some = self.program(f"{FAILS} if n % 2 else {RIGHT}")
        for policy in ("zero", "exclude"):
            with self.subTest(policy):
                config = self.small(policy, reward__on_error=policy, reward__num_workers=1, **some)
                code, said = self.run_of(config)
                self.assertEqual(code, 0, said[-2000:])
                self.assertEqual([d["reward/errors"] for _, d in sorted(self.steps(policy).items())], [2, 2])
                self.assertEqual(said.count("errors 2/4"), 2, said[-3000:])
                self.assertEqual(said.count("no score for 2 of the 4 responses of step 1 (2 so far"), 1, said[-3000:])
        code, said = self.run_of(self.small("stop", reward__on_error="stop", **some))
        self.assertEqual(code, 69, said[-2000:])
        self.assertIn("reward.on_error: stop: a response of step 1 has no score: row", said)

    def test_a_truth_that_a_rule_cannot_read_is_said_before_anything_is_generated(self):
        file = self.folder / "sums.jsonl"
        rows = [{"prompt": f"{i}=", "answer": "none" if i == 3 else str(i), "data_source": "addition"} for i in range(8)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes = {"data__train_files": [str(file)], "reward__type": "auto"}
        code, said = self.run_of(self.small("counted", **changes), ranks=2)
        self.assertEqual(code, 0, said[-2000:])
        warning = f"{file}: the answers to 1 of 8 rows get no score, since the reward's rule cannot read their ground truth, the first to row 3"
        self.assertEqual(said.count(warning), 1, said[-3000:])
        code, said = self.run_of(self.small("refused", reward__on_error="stop", **changes), ranks=2)
        self.assertEqual(code, 65, said[-2000:])
        self.assertIn(f"{file}:4: ground_truth: expected a number, found 'none'", said)
        self.assertEqual(self.steps("refused"), {})
        file.write_text("".join(json.dumps({**row, "answer": "none"}) + "\n" for row in rows))
        code, said = self.run_of(self.small("none_of_them", **changes))
        self.assertEqual(code, 65, said[-2000:])
        self.assertIn("data.train_files: the reward's rule cannot read the ground truth of any of 8 prompts", said)
        code, said = self.run_of(self.small("all_the_same", reward__on_error="zero_always", **changes))
        self.assertEqual(code, 0, said[-2000:])

    def test_a_validation_without_a_score_ends_the_run_too(self):
        val = self.folder / "held_out.jsonl"
        rows = [{"prompt": f"{i}=", "answer": str(i), "data_source": "held_out"} for i in range(6)]
        val.write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes = {"data__val_files": [str(val)], "trainer__test_freq": 1, "reward__num_workers": 1, "reward__batch_size": 1}
        none = self.program(f"{FAILS} if x['data_source'] == 'held_out' else {RIGHT}")
        code, said = self.run_of(self.small("none", **changes, **none))
        self.assertEqual(code, 69, said[-2000:])
        self.assertIn("none of the 6 responses of the validation after step 1 has a score", said)
        self.assertEqual(list(self.steps("none")), [1])
        # With some: the mean is over those that have one.
        right = "print(json.dumps({'id': x['id'], 'score': 1.0}), flush=True)"
        half = self.program(f"{FAILS} if x['data_source'] == 'held_out' and int(x['ground_truth']) % 2 else {right}")
        for policy, mean in (("exclude", 1.0), ("zero", 0.5)):
            code, said = self.run_of(self.small(f"half_{policy}", reward__on_error=policy, **changes, **half))
            self.assertEqual(code, 0, said[-2000:])
            records = harness.read_jsonl(self.run_dir(f"half_{policy}") / "metrics.jsonl")
            [first, _] = [r["data"] for r in records if "val-core/all/reward/mean" in r["data"]]
            self.assertEqual((first["val-core/all/reward/mean"], first["val-aux/all/reward/errors"]), (mean, 3))
            self.assertIn("errors 3/6", said)


class Advantages(Small):
    """What is learnt, by GRPO's formula from the scores of the dumps."""

    def formula(self, responses, learns, counts):
        """The advantage of each token that is learnt from; `learns` and `counts` (in its group) say which responses do."""
        tokens = []
        for r in responses:
            group = [other["score"] for other in responses if other["position"] == r["position"] and counts(other)]
            if not learns(r):
                continue
            deviation = statistics.stdev(group) if len(group) > 1 else 1.0
            value = (r["score"] - statistics.mean(group)) / (deviation + 1e-6)
            tokens += [value] * len(r["response_ids"])
        return tokens

    def check(self, name, learns=lambda _: True, counts=lambda _: True, **changes):
        dump = self.folder / f"dump_{name}"
        self.train(self.small(name, data__train_batch_size=8, actor_rollout_ref__rollout__n=6, trainer__rollout_data_dir=str(dump),
                              **{**self.program(SOME), **changes}))  # fmt: skip
        for step, data in self.steps(name).items():
            responses = harness.read_jsonl(dump / f"{step}.jsonl")
            tokens = self.formula(responses, learns, counts)
            self.assertGreater(len({round(value, 3) for value in tokens}), 4, "a test of nothing")
            self.assertLess(sum(map(learns, responses)), len(responses) + (name == "all"))
            wanted = {"mean": statistics.mean(tokens), "max": max(tokens), "min": min(tokens)}
            for what, value in wanted.items():
                self.assertAlmostEqual(data[f"critic/advantages/{what}"], value, places=5, msg=f"step {step} {what}")
            # The ratio of the only update is 1.
            self.assertAlmostEqual(data["actor/pg_loss"], -wanted["mean"], places=5)
            self.assertEqual(data["reward/errors"], sum("error" in r for r in responses))
            scores = [r["score"] for r in responses if counts(r)]
            for what, value in (("mean", statistics.mean(scores)), ("max", max(scores)), ("min", min(scores))):
                self.assertAlmostEqual(data[f"critic/score/{what}"], value, places=9)
                self.assertAlmostEqual(data[f"critic/rewards/{what}"], value, places=5)

    def test_all_responses(self):
        self.check("all")

    def test_responses_without_a_score(self):
        """Left out, also of their groups; or with a score of 0."""
        scored = lambda r: "error" not in r  # noqa: E731
        self.check("exclude", scored, scored, reward__on_error="exclude", **self.program(SOME_FAIL))

    def test_responses_that_were_cut(self):
        """Nothing is learnt from them, but their scores count in their groups, as by TRL's mask_truncated_completions."""
        self.check("cut", lambda r: r["finish_reason"] != "length", algorithm__overlong_filtering=True,
                   data__max_response_length=60)  # fmt: skip

    def test_the_rewards_of_responses_that_were_cut_are_their_scores(self):
        """By an estimator that compares no groups, where none of their tokens carries one."""
        self.train(self.small("cut-alone", algorithm__adv_estimator="reinforce_plus_plus", algorithm__overlong_filtering=True,
                              data__max_response_length=60, data__train_batch_size=8, trainer__rollout_data_dir=str(self.folder / "dump-alone"),
                              **self.program(SOME)))  # fmt: skip
        for step, data in self.steps("cut-alone").items():
            responses = harness.read_jsonl(self.folder / "dump-alone" / f"{step}.jsonl")
            self.assertTrue(any(r["finish_reason"] == "length" and r["score"] != 0 for r in responses), "a test of nothing")
            for what in ("mean", "max", "min"):
                self.assertAlmostEqual(data[f"critic/rewards/{what}"], data[f"critic/score/{what}"], places=5)


class Filters(Small):
    def test_the_rollouts_log_probabilities_are_the_trainers_whatever_it_draws_by(self):
        filters = {"top_p": 0.8, "top_k": 40, "temperature": 0.7, "repetition_penalty": 1.2}
        rollout = {f"actor_rollout_ref__rollout__{key}": value for key, value in filters.items()}
        code, said = self.run_of(self.small("policy", **rollout))
        self.assertEqual(code, 0, said[-2000:])
        self.assertEqual(said.count("tokens are drawn from what these leave"), 1, said[-3000:])
        for data in self.steps("policy").values():
            self.assertLessEqual(data[GAP], 1e-5)
        processed = {**rollout, "actor_rollout_ref__rollout__logprobs_mode": "processed_logprobs"}
        code, said = self.run_of(self.small("processed", **processed))
        self.assertEqual(code, 0, said[-2000:])
        self.assertIn("policy_logprobs makes them comparable", said)
        self.assertGreater(max(data[GAP] for data in self.steps("processed").values()), 0.01)
        code, said = self.run_of(self.small("refused", **processed, algorithm__rollout_correction__rollout_is="token"))
        self.assertEqual(code, 78, said[-2000:])
        self.assertIn("set logprobs_mode to policy_logprobs", said)


class Questions(Small):
    def test_gsm8k_is_asked_for_the_mark_that_the_strict_rule_looks_for(self):
        rows = [{"question": f"What is {i}+1?", "answer": f"It is.\n#### {i + 1}"} for i in range(8)]
        train = self.folder / "gsm8k.jsonl"
        train.write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes = {
            "data__train_files": [str(train)], "data__max_prompt_length": 110, "reward__type": "auto", "trainer__save_freq": 2,
        }  # fmt: skip
        asked = ' Let\'s think step by step and output the final answer after "####".'
        for name, more, ending in (
            ("strict", {}, asked),
            ("flexible", {"reward__method": "flexible"}, ""),
            ("own", {"data__question_instruction": "Be brief."}, " Be brief."),
            ("off", {"data__question_instruction": ""}, ""),
        ):
            with self.subTest(name):
                dump = self.folder / f"dump_{name}"
                config = self.small(name, trainer__rollout_data_dir=str(dump), **changes, **more)
                code, said = self.run_of(config)
                self.assertEqual(code, 0, said[-2000:])
                for row in harness.read_jsonl(dump / "1.jsonl"):
                    prompt = bytes(row["prompt_ids"]).decode()
                    self.assertEqual(prompt, f"What is {row['row']}+1?{ending}")
        # What the prompts became belongs to the identity of the data.
        more = {**changes, "trainer__total_training_steps": 4}
        code, said = self.run_of(self.small("strict", **more, data__question_instruction=""))
        self.assertEqual(code, 78, said[-2000:])
        code, said = self.run_of(self.small("strict", **more))
        self.assertEqual(code, 0, said[-2000:])


if __name__ == "__main__":
    unittest.main()
