"""`keel serve --run RUN --follow`: later checkpoints are taken up while it serves, and each answer is, token for token, what
`keel generate` makes with the checkpoint that it names."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import unittest
import unittest.mock

import harness
from server import COMPLETIONS, Server

PROMPTS = ["the", "0123456789", "ab"]
MODEL = {**harness.MODEL, "max_position_embeddings": 512, "initializer_range": 0.2}


class Follow(harness.Job):
    @classmethod
    def setUpClass(cls):
        """A run of four checkpoints, which tests publish one by one into a run of their own."""
        job = cls("train_some")
        job.setUp()
        cls.addClassCleanup(job._clean)
        job.train(job.training("made", 4))
        job.train(job.training("others", 2, actor_rollout_ref__actor__optim__lr=0.02))
        cls.made, cls.others = job.run_dir("made"), job.run_dir("others")

    def setUp(self):
        super().setUp()
        self.digests = {}

    def train_some(self):
        pass

    def training(self, name, steps, **others):
        return self.config(name, **{
            "trainer__total_training_steps": steps, "trainer__save_freq": 1, "actor_rollout_ref__model__config": MODEL,
            "actor_rollout_ref__actor__optim__lr": 0.01, "actor_rollout_ref__actor__optim__lr_decay_style": "constant", **others,
        })  # fmt: skip

    def publish(self, run, step, spoil=None, made=None):
        """As a save does: it is there at once."""
        run.mkdir(exist_ok=True)
        shutil.copytree((made or self.made) / f"global_step_{step}", run / f".copy_{step}")
        if spoil:
            spoil(run / f".copy_{step}")
        (run / f".copy_{step}").rename(run / f"global_step_{step}")

    def expected(self, step, **options):
        """{prompt: the greedy answer} with a checkpoint."""
        rows, out = self.folder / "rows.jsonl", self.folder / "out.jsonl"
        rows.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in PROMPTS))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        done = harness.keel("generate", "--model", step, "--input", rows, "--output", out, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {row["text"]: row["output"] for row in harness.read_jsonl(out)}

    def ask(self, server, prompt, tokens=20):
        answer = server.answer(COMPLETIONS, prompt=prompt, temperature=0, max_tokens=tokens)
        name, digest = answer["system_fingerprint"].split("-")
        self.digests.setdefault(digest, name)
        self.assertEqual(self.digests[digest], name, "one digest of two checkpoints")
        return name, prompt, answer["choices"][0]["text"]

    def wait_for(self, server, step):
        self.wait_until(lambda: server.metrics()["checkpoint_step"] == step, f"step {step} is served", server.process)

    def end(self, server):
        server.process.send_signal(signal.SIGTERM)
        said = server.process.communicate(timeout=harness.LIMIT_S)[0]
        self.assertEqual(server.process.returncode, 0, said)
        return said

    def check(self, run, found):
        """Each of (checkpoint, prompt, answer)."""
        wanted = {name: self.expected(run / name, max_new_tokens=20) for name in sorted({name for name, _, _ in found})}
        for name, prompt, text in found:
            self.assertEqual(text, wanted[name][prompt], (name, prompt))
        return wanted

    def test_while_it_is_trained(self):
        """Begun before there is a run's first checkpoint; asked by three clients all along, also beside the changes."""
        run = self.run_dir("run")
        config = self.training("run", 90)
        run.mkdir()
        server = Server(self, None, "--run", run, "--follow", wait=False)
        # It waits on the way, until answers have come from a checkpoint before that place.
        training = self.start(config, failpoint="step.begin:0:30:stop,step.begin:0:60:stop")
        server.wait()
        answers = []

        def client(number):
            found = []
            while training.poll() is None or found[-1][0] != "global_step_90":
                found.append(self.ask(server, PROMPTS[number]))
                answers.append(found[-1])
            return found

        with concurrent.futures.ThreadPoolExecutor() as clients:
            running = [clients.submit(client, number) for number in range(3)]
            for kinds in (1, 2):
                self.wait_until(lambda n=kinds: len({name for name, _, _ in list(answers)}) >= n, "answers of another step", training)
                self.continued(training, 0)
            found = sum((one.result() for one in running), [])
        self.assertEqual(training.returncode, 0, self.log()[-2000:])
        wanted = self.check(run, found)
        self.assertGreater(len(wanted), 2, sorted(wanted))
        self.assertGreater(len({tuple(texts.values()) for texts in wanted.values()}), 1, "all steps answer the same")
        for _, prompt, _ in found:
            steps = [int(name.rsplit("_", 1)[1]) for name, other, _ in found if other == prompt]
            self.assertEqual(steps, sorted(steps), "an older one came back")
        self.assertEqual(server.metrics()["checkpoints_total"], len(wanted))
        self.end(server)

    def damaged_and_gone(self, *flags):
        run = self.run_dir("run")
        self.publish(run, 1)
        server = Server(self, None, "--run", run, "--follow", *flags)
        found = [self.ask(server, prompt) for prompt in PROMPTS]

        def spoil(folder):
            weights = next((folder / "actor" / "model").glob("*.safetensors"))
            content = bytearray(weights.read_bytes())
            content[-100] ^= 1
            weights.write_bytes(content)

        # 1. Damaged weights, a manifest that is cut, and one that is gone at once: none is served.
        self.publish(run, 2, spoil)
        self.wait_until(lambda: server.metrics()["checkpoints_skipped_total"] == 1, "it is passed over", server.process)
        found += [self.ask(server, prompt) for prompt in PROMPTS]
        self.publish(run, 3, lambda folder: (folder / "manifest.json").write_text("{"))
        shutil.rmtree(run / "global_step_3")
        # 2. A whole one is, and one that was cut is counted, too.
        self.publish(run, 3, lambda folder: (folder / "manifest.json").write_text("{"))
        self.wait_until(lambda: server.metrics()["checkpoints_skipped_total"] == 2, "it is passed over", server.process)
        self.publish(run, 4)
        self.wait_for(server, 4)
        found += [self.ask(server, prompt) for prompt in PROMPTS]
        self.assertEqual([name for name, _, _ in found], ["global_step_1"] * 6 + ["global_step_4"] * 3)
        self.check(run, found)
        said = self.end(server)
        self.assertIn("global_step_2 is passed over", said)
        self.assertEqual(said.count("global_step_2 is passed over: "), 1)  # after it was read again
        self.assertEqual(said.count("global_step_3 is passed over: "), 1)
        self.assertNotIn("fill it anew", said)

    @unittest.skipUnless(harness.SHORT_IO.exists(), "SKIPPED: a build with sanitizers has no libkeel_short_io.so")
    def test_a_read_that_fails_once_is_done_again(self):
        for part in ("actor/model", "manifest.json", "index.bin"):
            with self.subTest(part):
                run = self.run_dir(part.replace("/", "_"))
                self.publish(run, 1)
                with unittest.mock.patch.dict(os.environ, LD_PRELOAD=str(harness.SHORT_IO), KEEL_FAIL_FIRST_READ=f"global_step_2/{part}"):
                    server = Server(self, None, "--run", run, "--follow")
                self.publish(run, 2)
                self.wait_for(server, 2)
                self.assertEqual(server.metrics()["checkpoints_skipped_total"], 0)
                self.assertIn("global_step_2", self.end(server))

    @unittest.skipUnless(harness.SHORT_IO.exists(), "SKIPPED: a build with sanitizers has no libkeel_short_io.so")
    def test_the_first_is_read_again(self):
        """One read that fails at the start is no reason for an older one, whether the run is followed or not."""
        run = self.run_dir("run")
        for step in (1, 2):
            self.publish(run, step)
        for part in ("actor/model", "actor/huggingface", "manifest.json", "index.bin"):
            for follow in ([], ["--follow"]):
                with self.subTest(part, follow=follow):
                    with unittest.mock.patch.dict(os.environ, LD_PRELOAD=str(harness.SHORT_IO), KEEL_FAIL_FIRST_READ=f"global_step_2/{part}"):
                        server = Server(self, None, "--run", run, *follow, wait=False)
                    said = server.wait()
                    self.assertEqual(self.ask(server, "the")[0], "global_step_2")
                    self.assertEqual(server.metrics()["checkpoints_skipped_total"], 0)
                    self.assertIn("global_step_2 is passed over for now: ", said)
                    self.end(server)

    def test_damaged_ones_are_passed_over(self):
        self.damaged_and_gone()

    def test_on_two_ranks(self):
        self.damaged_and_gone("--tp", 2)

    def test_the_first_is_damaged(self):
        """Of a run whose newest is, the one before is served; where there is none, that is said."""
        run = self.run_dir("run")
        self.publish(run, 1)
        self.publish(run, 2, lambda folder: next((folder / "actor" / "model").glob("*")).write_bytes(b"x"))
        server = Server(self, None, "--run", run)
        self.assertEqual(self.ask(server, "the")[0], "global_step_1")
        self.assertEqual(server.metrics()["checkpoints_skipped_total"], 1)
        self.end(server)
        (self.folder / "empty").mkdir()
        done = harness.keel("serve", "--run", self.folder / "empty")
        self.assertEqual((done.returncode != 0, "no checkpoint that can be served" in done.stderr), (True, True), done.stderr)

    def test_what_has_begun_ends_as_it_began(self):
        """A long answer is under way when the next checkpoint comes; what is asked then waits for that, and is answered by it."""
        run = self.run_dir("run")
        self.publish(run, 1)
        server = Server(self, None, "--run", run, "--follow")
        long = {"prompt": "the", "temperature": 0, "max_tokens": 500, "stream": True}
        begun = server.send(COMPLETIONS, long)
        response = begun.getresponse()
        head = response.read(200)
        self.publish(run, 2)
        # Whichever of the two weights they meet, they name it.
        with concurrent.futures.ThreadPoolExecutor() as clients:
            found = list(clients.map(lambda _: [self.ask(server, "ab") for _ in range(8)], range(4)))
        events = (head + response.read()).decode().split("\n\n")
        begun.close()
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        self.assertEqual({chunk["system_fingerprint"].split("-")[0] for chunk in chunks}, {"global_step_1"})
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        self.assertEqual(text, self.expected(run / "global_step_1", max_new_tokens=500)["the"])
        self.wait_for(server, 2)
        found = sum(found, []) + [self.ask(server, prompt) for prompt in PROMPTS]
        self.assertEqual(found[-1][0], "global_step_2")
        self.check(run, found)
        self.end(server)

    def test_a_run_that_went_back_or_was_begun_anew(self):
        """Steps and numbers of commits come again, with other weights: what is there now is served."""
        run = self.run_dir("run")
        for step in (1, 2):
            self.publish(run, step)
        server = Server(self, None, "--run", run, "--follow")
        first = self.ask(server, "the")
        # 1. What is served is withdrawn: the one before it; then step 2 comes again, the second commit of the run, too.
        shutil.rmtree(run / "global_step_2")
        self.wait_for(server, 1)
        self.assertEqual(self.ask(server, "the")[0], "global_step_1")
        self.publish(run, 2, made=self.others)
        self.wait_for(server, 2)
        again = self.ask(server, "the")
        self.assertEqual(again[2], self.expected(run / "global_step_2", max_new_tokens=20)["the"])
        self.assertNotEqual(again[2], first[2])
        # 2. Another run takes the name of the whole.
        run.rename(run.with_name("gone"))
        self.publish(run, 1, made=self.others)
        self.wait_for(server, 1)
        self.check(run, [self.ask(server, "the")])
        self.assertEqual(len(self.digests), 4)
        self.end(server)

    def test_the_end_before_it_serves(self):
        """Nobody is served yet: the end comes at once, while it waits for a run, and while it loads."""
        run = self.run_dir("run")
        waiting = f"waiting for the first checkpoint of {run}"
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server(self, None, "--run", run, "--follow", wait=False)
            self.assertIn(waiting, next((line for line in server.process.stdout if waiting in line), "it ended"))
            server.process.send_signal(number)
            said = server.process.communicate(timeout=harness.LIMIT_S)[0]
            self.assertEqual((server.process.returncode, said), (0, "keel: ended before its weights were there\n"))
        self.publish(run, 1)
        server = Server(self, None, "--run", run, "--follow", wait=False)
        # Handlers are there before the libraries are.
        taken = 1 << signal.SIGTERM - 1
        status = pathlib.Path(f"/proc/{server.process.pid}/status")
        self.wait_until(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & taken, "it takes signals", server.process)
        self.assertEqual(self.end(server), "keel: ended before its weights were there\n")

    def test_a_run_that_has_not_begun(self):
        """Its folder comes with its first checkpoint."""
        run = self.run_dir("run")
        server = Server(self, None, "--run", run, "--follow", wait=False)
        self.assertIn("waiting for the first", server.process.stdout.readline())
        self.publish(run, 1)
        server.wait()
        self.check(run, [self.ask(server, "the")])
        self.end(server)

    def test_what_is_asked_wrongly(self):
        for arguments, part in (
            ([], "either MODEL or --run"),
            (["model", "--run", "run"], "either MODEL or --run"),
            (["model", "--follow"], "--follow: needs --run"),
            (["--run", self.folder / "nothing"], "--run"),
        ):
            done = harness.keel("serve", *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
