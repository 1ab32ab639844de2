"""`keel generate`, `score` and `chat` from a Hugging Face folder and from a step of a run, on one rank and on several:
the tokens are those of transformers, whoever holds which part of the model."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import unittest

import harness
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

PROMPTS = ["the", "a longer text to go on with, ", "0123456789"]
TOKENS = 12
CONFIG, NO_SPACE = 78, 74


class Inference(harness.Job):
    @classmethod
    def setUpClass(cls):
        """A run of two steps at TP 2, and its export."""
        job = cls("train_once")
        job.setUp()
        cls.addClassCleanup(job._clean)
        config = job.config(
            "run", trainer__total_training_steps=2, trainer__save_freq=2,
            actor_rollout_ref__actor__megatron={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1},
            actor_rollout_ref__model__config={**harness.MODEL, "max_position_embeddings": 512, "initializer_range": 0.2},
        )  # fmt: skip
        job.train(config, ranks=2)
        cls.step, cls.exported = job.run_dir("run") / "global_step_2", job.folder / "exported"
        done = harness.keel("ckpt", "export-hf", cls.step, cls.exported)
        assert done.returncode == 0, done.stderr

    def train_once(self):
        pass

    def rows(self, *rows):
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def generate(self, model, rows, *arguments, tokens=TOKENS):
        output = self.folder / "generated.jsonl"
        done = harness.keel("generate", "--model", model, "--input", rows, "--output", output,
                            "--max-new-tokens", tokens, *arguments)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.read_jsonl(output)

    def expected(self, prompts):
        """Greedy, by transformers; of the tokens that there are: the vocabulary is padded to 263."""
        model = transformers.AutoModelForCausalLM.from_pretrained(self.exported, dtype=torch.float32)
        answers = []
        for ids in prompts:
            out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0,
                                 suppress_tokens=list(range(259, 263)))  # fmt: skip
            answers.append(out[0, len(ids) :].tolist())
        return answers

    def test_the_same_tokens_wherever_the_model_lies(self):
        rows = self.rows(*({"input_ids": list(text.encode())} for text in PROMPTS))
        wanted = self.expected([list(text.encode()) for text in PROMPTS])
        self.assertGreater(len({token for answer in wanted for token in answer}), 3)
        scores = {}
        for model in (self.exported, self.step):
            for tp in (1, 2, 4):  # the model has two key-value heads
                with self.subTest(model=model.name, tp=tp):
                    found = self.generate(model, rows, "--tp", tp)
                    self.assertEqual([row["output_ids"] for row in found], wanted)
                    self.assertEqual([row["input_ids"] for row in found], [list(t.encode()) for t in PROMPTS])
                    scored = self.folder / "scores.jsonl"
                    done = harness.keel("score", "--model", model, "--input", rows, "--output", scored, "--tp", tp)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    scores[model.name, tp] = [row["sum_log_prob"] for row in harness.read_jsonl(scored)]
        first = next(iter(scores.values()))
        for found in scores.values():
            for a, b in zip(first, found, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3)

    def test_samples_do_not_depend_on_the_ranks(self):
        rows = self.rows(*({"text": text} for text in PROMPTS))
        options = ("--n", 2, "--temperature", 1, "--top-p", 0.9, "--top-k", 50, "--seed", 5)
        alone, both = (self.generate(self.step, rows, *options, "--tp", tp) for tp in (1, 2))
        self.assertEqual([(row["text"], row["sample"]) for row in alone], [(t, s) for t in PROMPTS for s in (0, 1)])
        self.assertEqual([row["output_ids"] for row in alone], [row["output_ids"] for row in both])
        index, stop = next((i, c) for i, row in enumerate(alone) for c in row["output"][1:] if c.isascii() and c.isprintable())
        stopped = self.generate(self.step, rows, *options, "--stop", stop, "--tp", 2)[index]
        self.assertEqual(stopped["output"], alone[index]["output"].split(stop)[0])

    def test_below_the_launcher(self):
        rows = self.rows({"text": PROMPTS[0]})
        output = self.folder / "launched.jsonl"
        command = ["launch", "--nproc-per-node", 2, "generate", "--model", self.step, "--input", rows, "--output",
                   output, "--max-new-tokens", TOKENS]  # fmt: skip
        done = harness.keel(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(harness.read_jsonl(output), self.generate(self.step, rows))
        done = harness.keel(*command, "--tp", 4)
        self.assertEqual((done.returncode, "has started 2 ranks" in done.stderr), (64, True), done.stderr)

    def on_ranks(self, *commands):
        """What each of them says, as ranks of one job, in folders of their own."""
        port = harness.free_port()
        running = []
        for rank, (folder, arguments) in enumerate(commands):
            environment = {**harness.environment(), "RANK": str(rank), "WORLD_SIZE": str(len(commands)), "LOCAL_RANK": str(rank),
                           "LOCAL_WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
            running.append(subprocess.Popen([harness.KEEL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, env=environment, cwd=folder))  # fmt: skip
        said = [process.communicate(timeout=harness.LIMIT_S)[0] for process in running]
        return [(process.returncode, text) for process, text in zip(running, said)]

    def test_ranks_that_were_given_different_things(self):
        """Nodes with a model of the same name: the weights of one and those of another make an answer, and a wrong one."""
        rows, out = self.rows({"text": PROMPTS[0]}), self.folder / "mixed.jsonl"
        here, there = self.folder / "here", self.folder / "there"
        for folder in (here, there):
            shutil.copytree(self.exported, folder / "m")
        weights = there / "m" / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        generate = ["generate", "--model", "m", "--input", rows, "--output", out]
        score = ["score", "--model", "m", "--input", rows, "--output", out]
        row = '{"prompt": "a", "answer": "b", "data_source": "addition"}\n'
        for folder, more in ((here, ""), (there, row)):
            (folder / "rows.jsonl").write_text(row + more)
        evaluate = ["eval", "--model", "m", "--data", "rows.jsonl", "--output", self.folder / "eval", "--tp", "2"]
        for first, second, named in (
            ((here, score), (there, score), "weights of --model"),
            ((here, [*generate, "--temperature", "1"]), (here, [*generate, "--temperature", "1", "--seed", "7"]), "--seed: 0 on rank 0; 7 on rank 1"),
            ((here, generate), (here, [*generate, "--dtype", "bfloat16"]), "type of the weights: float32 on rank 0; bfloat16 on rank 1"),
            ((here, score), (here, [*score, "--logits", self.folder / "l.safetensors"]), "--logits is given: no on rank 0; yes on rank 1"),
            ((here, evaluate), (here, [*evaluate, "--stop", "x"]), '--stop: [] on rank 0; ["x"] on rank 1'),
        ):  # fmt: skip
            with self.subTest(named):
                for code, text in self.on_ranks(first, second):
                    self.assertEqual(code, CONFIG, text)
                    self.assertIn(named, text)
                self.assertFalse(out.exists())
        # Rows that one rank has otherwise, where the model is the same.
        shutil.copyfile(here / "m" / "model.safetensors", weights)
        for code, text in self.on_ranks((here, evaluate), (there, evaluate)):
            self.assertEqual(code, CONFIG, text)
            self.assertIn("content of --data: 1 rows", text)
        # And the same things are no quarrel, wherever they lie.
        for code, text in self.on_ranks((here, generate), (there, generate)):
            self.assertEqual(code, 0, text)

    def test_logits_on_a_full_disk(self):
        """Half a file of tensors is none: what stood there before stays, and the message says why."""
        trial = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
        if subprocess.run(trial, capture_output=True, check=False).returncode != 0:
            self.skipTest("no mount namespaces here")
        rows = self.rows(*({"text": PROMPTS[1]} for _ in range(20)))
        score = f"{harness.KEEL} score --model {self.exported} --input {rows} --output {self.folder / 's.jsonl'} --logits /mnt/l.safetensors"
        script = f"mount -t tmpfs -o size=64k none /mnt || exit 99; echo old > /mnt/l.safetensors; {score}; code=$?; ls -A /mnt; cat /mnt/*; exit $code"
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env=harness.environment(), check=False)  # fmt: skip
        self.assertEqual(done.returncode, NO_SPACE, done)
        self.assertTrue(done.stdout.endswith("l.safetensors\nold\n"), done.stdout)
        self.assertIn("No space left on device", done.stderr)

    def test_many_rows_come_a_few_at_a_time(self):
        """More rows than are relayed at once, and than are computed at once: each has its own answers, in order, on any number of ranks;
        and what a row holds beside its text stays."""
        lines = [{"text": f"{i}: " + "ab" * (i % 50), "note": {"n": i, "x": [1.5, None, "é"]}} for i in range(700)]
        rows = self.rows(*lines)
        options = ("--n", 2, "--temperature", 1, "--seed", 7)
        alone = self.generate(self.step, rows, *options, tokens=3)
        self.assertEqual([(row["text"], row["sample"]) for row in alone], [(line["text"], n) for line in lines for n in (0, 1)])
        self.assertEqual([row["note"] for row in alone[::2]], [line["note"] for line in lines])
        self.assertEqual(self.generate(self.step, rows, *options, "--tp", 2, "--max-num-seqs", 5, tokens=3), alone)
        # And so has each its own scores, and the logits that these are of.
        scores, logits = self.folder / "scores.jsonl", self.folder / "logits.safetensors"
        found = {}
        for tp in (1, 2):
            done = harness.keel("score", "--model", self.step, "--input", rows, "--output", scores, "--logits", logits, "--tp", tp)
            self.assertEqual(done.returncode, 0, done.stderr)
            found[tp] = harness.read_jsonl(scores)
            tensors = safetensors.torch.load_file(logits)
            self.assertEqual(len(tensors), len(lines))
            for i, (line, score) in enumerate(zip(lines, found[tp], strict=True)):
                ids = torch.tensor(list(line["text"].encode()))
                mine = tensors[f"logits.{i}"].log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
                torch.testing.assert_close(mine, torch.tensor(score["log_probs"]), rtol=1e-4, atol=1e-4)
            self.assertEqual(sorted(path.name for path in self.folder.glob("*.partial")), [])
        for one, two in zip(found[1], found[2], strict=True):
            self.assertAlmostEqual(one["sum_log_prob"], two["sum_log_prob"], delta=1e-3)

    def peak_megabytes(self, *arguments):
        process = subprocess.Popen([harness.KEEL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=harness.environment())
        said = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0, said)
        return usage.ru_maxrss / 1024

    def test_rows_are_not_held(self):
        """Neither what was read nor what was written: 120 MB of rows, of which the first one takes the longest."""
        rows, out = self.folder / "large.jsonl", self.folder / "out.jsonl"

        def peak(count, command, *more):
            with rows.open("w") as file:
                for i in range(count):
                    file.write(json.dumps({"text": "a b", "note": f"{i} " + "x" * 6000}) + "\n")
            found = self.peak_megabytes(command, "--model", self.step, "--input", rows, "--output", out, *more)
            self.assertEqual(sum(1 for _ in out.open()), count)
            return found

        few, many = 1000, 20000
        for command in (("generate", "--max-new-tokens", "1"), ("score",)):
            with self.subTest(command[0]):
                self.assertLess(peak(many, *command) - peak(few, *command), 45)

    def test_messages_and_pipes(self):
        """A conversation becomes the model's template, here ChatML of bytes; and --tp leaves both pipes alone."""
        messages = [{"role": "user", "content": "hi"}]
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
        rows = [{"messages": messages}, {"prompt": messages}, {"text": text}, {"messages": parts}]
        done = subprocess.run(
            [harness.KEEL, "generate", "--model", self.step, "--input", "-", "--output", "-", "--tp", "2"],
            input="".join(json.dumps(row) + "\n" for row in rows), capture_output=True, text=True, check=False,
            timeout=harness.LIMIT_S, env=harness.environment(),
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(found), 4)
        self.assertEqual([row["output_ids"] for row in found], [found[0]["output_ids"]] * 4)

    def test_numbers_that_are_none_may_stand_where_nothing_reads(self):
        """Python's json writes NaN, Infinity and integers of any size: a row goes out with them as it came."""
        beside = '"s": NaN, "t": {"u": [1, -Infinity]}, "id": 100000000000000000000000000007, "v": 1.5'
        rows, scores = self.folder / "rows.jsonl", self.folder / "scores.jsonl"
        messages = '"messages": [{"role": "user", "content": "hi"}]'
        rows.write_text("".join(f"{{{read}, {beside}}}\n" for read in ('"text": "a b"', '"input_ids": [97, 32, 98]', messages)))
        for line in self.generate(self.step, rows):
            self.assertEqual(str(line["s"]), "nan")
            self.assertEqual([line["t"], line["id"], line["v"]], [{"u": [1, float("-inf")]}, 10**29 + 7, 1.5])
        done = harness.keel("score", "--model", self.step, "--input", rows, "--output", scores)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(harness.read_jsonl(scores)), 3)
        for wrong in ('{"text": NaN}', '{"input_ids": [97, NaN]}', '{"prompt": 1000000000000000000000}', '{"input_ids": [97], "attention_mask": [NaN]}',
                      '{"messages": [{"role": "user", "content": "hi", "x": NaN}]}'):  # fmt: skip
            rows.write_text(wrong + "\n")
            done = harness.keel("score", "--model", self.step, "--input", rows, "--output", scores)
            self.assertEqual(done.returncode, 65, done)
            self.assertRegex(done.stderr, "rows.jsonl:1: line 1, column [0-9]+: (no number of JSON|integer out of range)")

    def scores(self, *rows, model=None):
        """And what is said of the rows."""
        output = self.folder / "scores.jsonl"
        done = harness.keel("score", "--model", model or self.step, "--input", self.rows(*rows), "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.read_jsonl(output), done.stderr

    def test_a_prompt_and_its_response_are_scored_as_one_text(self):
        ask, answer = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "ho"}]
        ids = {"input_ids": [97, 32, 98, 99]}
        (text, chat, *found), said = self.scores(
            ids, {"messages": ask + answer},
            {"prompt": "a b", "completion": "c"}, {"prompt": "a ", "response": "bc"}, {"prompt": [97], "response": [32, 98, 99]},
            {"prompt": "", "completion": "a bc"}, {"prompt": "a bc", "completion": None}, {"prompt": ask, "completion": answer},
        )  # fmt: skip
        self.assertEqual(found, [text] * 5 + [chat])
        self.assertNotIn("nothing reads", said)
        model = self.own_tokenizer()
        (first, *found), _ = self.scores({"messages": ask + answer}, {"prompt": ask, "completion": answer}, {"prompt": ask, "response": "ho"}, model=model)
        self.assertEqual(found, [first] * 2)
        # `generate` goes on with the prompt, and `text` is a text by itself.
        asked = self.rows({"prompt": "a b"}, {"prompt": "a b", "completion": "c"})
        first, second = self.generate(self.step, asked)
        self.assertEqual(first["output_ids"], second["output_ids"])
        (first, second), said = self.scores({"text": "a b"}, {"text": "a b", "completion": "c"})
        self.assertEqual(first, second)
        self.assertIn("rows.jsonl: keys that nothing reads, with their number in 2 rows: completion (1)", said)

    def test_what_score_does_not_read_is_named(self):
        rows = [{"text": "a b", "id": n, "labels": [1]} for n in range(3)] + [{**row, "id": 1, "tags": []} for row in ({"prompt": "a b"}, {"input_ids": [97, 98]})]
        _, said = self.scores(*rows)
        self.assertIn("rows.jsonl: keys that nothing reads, with their number in 5 rows: id (5), labels (3)\n", said)
        # What is written again is not lost.
        done = harness.keel("generate", "--model", self.step, "--input", self.rows(*rows), "--output", self.folder / "out.jsonl", "--max-new-tokens", 1)
        self.assertEqual((done.returncode, "nothing reads" in done.stderr), (0, False), done.stderr)

    def test_what_the_model_is_not_shown_is_named(self):
        """`generate` and `score` dropped tools that the template has no word of, and `generate` what stands beside a text."""
        model, ask = self.own_tokenizer(), [{"role": "user", "content": "hi"}]
        tools = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
        (plain, told), said = self.scores({"messages": ask}, {"messages": ask, "tools": tools}, model=model)
        self.assertEqual(plain, told)
        self.assertIn("rows.jsonl: keys that nothing reads, with their number in 2 rows: tools (1)\n", said)
        beside = {"tools": tools, "system": "s", "history": [["a", "b"]], "id": 7, "labels": [1]}
        rows = self.rows({"messages": ask, "tools": tools, "id": 7}, {"prompt": "hi", **beside}, {"input_ids": [97], **beside})
        done = harness.keel("generate", "--model", model, "--input", rows, "--output", self.folder / "out.jsonl", "--max-new-tokens", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rows.jsonl: keys that nothing reads, with their number in 3 rows: history (1), system (1), tools (2)\n", done.stderr)

    def test_the_assistants_last_message_is_gone_on_with(self):
        ask, answer = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "ho"}]
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        scored, _ = self.scores({"messages": ask}, {"messages": ask + answer}, {"text": text}, {"text": text + "ho"})
        self.assertEqual(scored[:2], scored[2:])
        # With its end: as ids.
        ids = self.folder / "ids.jsonl"
        done = harness.keel("data", "encode", "--tokenizer", self.exported, "--input", self.rows({"messages": ask + answer}), "--output", ids)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = self.scores(*harness.read_jsonl(ids), {"text": text + "ho<|im_end|>\n"})[0]
        self.assertEqual(first, second)

    def chat(self, lines, *arguments, model=None):
        return subprocess.run([harness.KEEL, "chat", str(model or self.step), *map(str, arguments)], input=lines,
                              capture_output=True, timeout=harness.LIMIT_S, env=harness.environment(),
                              check=False)  # fmt: skip

    def answers_by_generate(self, turns, system=None, tokens=20):
        """What each turn is answered, one call of generate each."""
        messages = [{"role": "system", "content": system}] if system else []
        answers = []
        for said in turns:
            messages.append({"role": "user", "content": said})
            answers.append(self.generate(self.step, self.rows({"messages": messages}), tokens=tokens)[0]["output"])
            messages.append({"role": "assistant", "content": answers[-1]})
        return answers

    def test_chat(self):
        for tp in (1, 2):
            with self.subTest(tp=tp):
                done = self.chat(b"hi\n\nand then?\n/reset\nhi\n", "--max-new-tokens", 20, "--tp", tp)
                self.assertEqual(done.returncode, 0, done.stderr)
                first, second = self.answers_by_generate(["hi", "and then?"])
                self.assertEqual(done.stdout.decode(errors="replace"), f"{first}\n{second}\n{first}\n")
        done = self.chat(b"hi\n/exit\nnever read\n", "--max-new-tokens", 20, "--system", "be brief")
        self.assertEqual(done.stdout.decode(errors="replace"), self.answers_by_generate(["hi"], "be brief")[0] + "\n")

    def test_chat_answers_while_it_generates(self):
        # Each of its writes is a message, however late it is read.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(ours.close)
        ours.settimeout(harness.LIMIT_S)
        process = subprocess.Popen([harness.KEEL, "chat", str(self.step), "--max-new-tokens", "60", "--tp", "2"],
                                   stdin=subprocess.PIPE, stdout=theirs, env=harness.environment())  # fmt: skip
        theirs.close()
        self.addCleanup(harness.end_with_children, process)
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        parts = []
        while not parts or not parts[-1].endswith(b"\n"):
            parts.append(ours.recv(1 << 16))
        self.assertGreater(len(parts), 1, "the answer came at once")
        process.stdin.close()  # the pipe was open all the while: the answer did not wait for its end
        self.assertEqual(process.wait(harness.LIMIT_S), 0)

    def test_no_rank_outlives_a_command_that_was_killed(self):
        process = subprocess.Popen([harness.KEEL, "chat", str(self.step), "--tp", "2"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=harness.environment())  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        self.wait_until(lambda: len(harness.descendants(process.pid)) == 1, "the other rank")
        (other,) = harness.descendants(process.pid)
        process.kill()
        process.wait()
        self.wait_until(lambda: not pathlib.Path(f"/proc/{other}").exists()
                        or "Z" in pathlib.Path(f"/proc/{other}/stat").read_text().rsplit(")", 1)[1].split()[0],
                        "the other rank's end")  # fmt: skip
        process.stdin.close()
        process.stdout.close()

    def own_tokenizer(self):
        """The export with a tokenizer and a template of the model's own, made by tokenizers."""
        folder = self.folder / "own"
        subprocess.run(["cp", "-r", self.exported, folder], check=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|begin|>", "<|user|>", "<|model|>"])
        tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", 256)])
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>"}))  # fmt: skip
        (folder / "chat_template.jinja").write_text(
            "{{ bos_token }}{% for m in messages %}<|{{ 'model' if m.role == 'assistant' else m.role }}|>{{ m.content | trim }}\n"
            "{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}")
        config = json.loads((folder / "config.json").read_text())
        del config["keel_tokenizer"]
        config["bos_token_id"], config["eos_token_id"] = 256, None
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").unlink(missing_ok=True)
        return folder

    def test_a_tokenizer_and_a_template_of_the_models_own(self):
        folder = self.own_tokenizer()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        messages = [{"role": "user", "content": " hi \u00e9"}]
        rows = self.rows({"text": "the <|user|>"}, {"prompt": "the"}, {"messages": messages}, {"prompt": messages})
        rows = rows.rename(self.folder / "asked.jsonl")
        chat = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        prompts = [tokenizer("the <|user|>").input_ids, tokenizer("the").input_ids, chat, chat]
        self.assertEqual(prompts[1][0], 256)
        wanted = self.expected(prompts)
        for tp in (1, 2):
            found = self.generate(folder, rows, "--tp", tp)
            self.assertEqual([row["output_ids"] for row in found], wanted)
            self.assertEqual([row["output"] for row in found], [tokenizer.decode(ids, skip_special_tokens=True) for ids in wanted])
            done = self.chat(" hi \u00e9\n".encode(), "--max-new-tokens", TOKENS, "--tp", tp, model=folder)
            self.assertEqual(done.stdout.decode(), self.generate(folder, self.rows({"messages": [
                {"role": "user", "content": "hi \u00e9"}]}))[0]["output"] + "\n", done.stderr)  # fmt: skip
        (folder / "chat_template.jinja").unlink()
        done = harness.keel("generate", "--model", folder, "--input", rows, "--output", self.folder / "none.jsonl")
        self.assertEqual((done.returncode, "asked.jsonl:3: messages, but" in done.stderr), (65, True), done.stderr)
        (folder / "chat_template.jinja").write_text("{{ raise_exception('only questions') }}")
        done = self.chat(b"hi\n", model=folder)
        self.assertEqual((done.returncode, b"only questions" in done.stderr), (65, True), done.stderr)
        (folder / "tokenizer.json").unlink()
        done = harness.keel("generate", "--model", folder, "--input", rows, "--output", self.folder / "none.jsonl")
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("it holds no tokenizer", done.stderr)

    def test_what_is_refused(self):
        def refused(code, word, rows, *arguments, model=None):
            done = harness.keel("generate", "--model", model or self.step, "--input", self.rows(*rows), "--output",
                                self.folder / "none.jsonl", *arguments)  # fmt: skip
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(word, done.stderr)
        refused(65, "rows.jsonl:2: expected one of the keys input_ids, messages, text, prompt",
                [{"text": "a"}, {"question": "b"}])  # fmt: skip
        refused(65, "rows.jsonl:1", [{"messages": [{"role": "user"}]}], "--tp", 2)
        refused(65, "rows.jsonl:1: messages[0]: content: a part of type image_url",
                [{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}])  # fmt: skip
        refused(65, "rows.jsonl:1", [{"text": 5}])
        done = harness.keel("score", "--model", "", "--input", self.rows({"text": "a"}), "--output", self.folder / "none.jsonl")
        self.assertEqual((done.returncode, "--model: the directory's name is empty" in done.stderr), (64, True), done.stderr)
        refused(64, "--temperature 0 with --n 3: all samples of a row would be the same", [{"text": "a"}], "--n", 3)
        # However far behind: nothing is computed before all are read, and what stood there stays.
        (self.folder / "none.jsonl.partial").write_text("of another time\n")
        refused(65, "rows.jsonl:601: messages: expected a list of messages", [*([{"text": "a"}] * 600), {"messages": 5}], "--tp", 2)
        done = harness.keel("score", "--model", self.step, "--input", self.rows(*([{"text": "a"}] * 600), {"text": "a" * 5000}),
                            "--output", self.folder / "none.jsonl", "--logits", self.folder / "none.safetensors")  # fmt: skip
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("rows.jsonl:601: 5000 tokens to score, more than the 512", done.stderr)
        self.assertEqual([path.name for path in self.folder.glob("none*")], ["none.jsonl.partial"])
        self.assertEqual((self.folder / "none.jsonl.partial").read_text(), "of another time\n")
        refused(66, "no such directory", [{"text": "a"}], model=self.folder / "nowhere")
        bare = self.folder / "bare"
        bare.mkdir()
        (bare / "manifest.json").write_text("{}")
        refused(66, "no actor/huggingface/config.json", [{"text": "a"}], model=bare)
        no_tokenizer = self.folder / "ids"
        subprocess.run(["cp", "-r", self.exported, no_tokenizer], check=True)
        (no_tokenizer / "tokenizer.json").write_text("{}")
        config = json.loads((no_tokenizer / "config.json").read_text())
        del config["keel_tokenizer"]
        (no_tokenizer / "config.json").write_text(json.dumps(config))
        refused(65, "tokenizer", [{"text": "a"}], model=no_tokenizer)
        done = self.chat(b"hi\n", model=no_tokenizer)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn(b"tokenizer", done.stderr)
        done = self.chat(b"\xff\xfe\n")
        self.assertEqual((done.returncode, b"not UTF-8" in done.stderr), (65, True), done.stderr)

    def test_devices(self):
        rows = self.rows({"text": "the"})
        found = self.generate(self.exported, rows, "--device", "cpu")
        self.assertEqual(found, self.generate(self.exported, rows))
        cuda = ["generate", "--model", self.exported, "--input", rows, "--output", self.folder / "out.jsonl", "--device"]
        for device, code, said in (
            ("gpu", 64, "device 'gpu': expected auto, cpu, cuda, or cuda:N"),
            ("cpu:1", 64, "device 'cpu:1': expected auto, cpu, cuda, or cuda:N"),
            ("cuda", 69, "device: cuda: "),
        ):
            if device == "cuda" and os.path.exists("/dev/nvidiactl"):
                continue  # it may work here
            with self.subTest(device):
                done = harness.keel(*cuda, device)
                self.assertEqual(done.returncode, code, done)
                self.assertIn(said, done.stderr)
                self.assertFalse((self.folder / "out.jsonl").exists())
        done = harness.keel(*cuda, "cuda:1", "--tp", "2")
        self.assertEqual(done.returncode, 64, done)
        self.assertIn("--device cuda:1 with 2 ranks", done.stderr)

    def test_damage_is_found(self):
        copy = self.folder / "damaged" / "global_step_2"
        copy.parent.mkdir()
        subprocess.run(["cp", "-r", self.step, copy], check=True)
        weights = sorted((copy / "actor" / "model").glob("*.safetensors"))[0]
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        weights.write_bytes(content)
        done = harness.keel("generate", "--model", copy, "--input", self.rows({"text": "a"}), "--output", "-")
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn(weights.name, done.stderr)


if __name__ == "__main__":
    unittest.main()
