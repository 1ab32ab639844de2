"""trainer.trace and keel trace, trainer.profile: what four real ranks of TP 2 x PP 2 note of their steps and saves nests, is in its
order across ranks, survives a kill, and changes no number."""

import json
import pathlib
import re
import unittest

import harness
import split_test

PIPELINE = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2,
            "actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}  # fmt: skip
TRACE = {"trainer__trace__enable": True}


def ns(microseconds):
    return round(microseconds * 1000)


class TraceJob(harness.Job):
    def traced(self, name, *arguments):
        out = self.folder / f"{name}.trace.json"
        done = harness.keel("trace", self.run_dir(name), "--out", out, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads(out.read_text())
        self.assertEqual(set(trace), {"displayTimeUnit", "otherData", "traceEvents"})
        for event in trace["traceEvents"]:
            self.assertIn(event["ph"], ("X", "M"))
            self.assertIsInstance(event["pid"], int)
            self.assertIsInstance(event["tid"], int)
            self.assertIsInstance(event["name"], str)
            self.assertIsInstance(event["args"], dict)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["ts"], 0)
                self.assertGreaterEqual(event["dur"], 0)
        return done, trace["traceEvents"]

    def spans(self, events):
        """{(rank, lane): spans in their order, each with its parent}; fails where two of a lane overlap."""
        lanes = {}
        for event in events:
            if event["ph"] == "X":
                begin = ns(event["ts"])
                lanes.setdefault((event["pid"], event["tid"]), []).append(
                    {**event["args"], "name": event["name"], "begin": begin, "end": begin + ns(event["dur"])})  # fmt: skip
        for lane in lanes.values():
            lane.sort(key=lambda span: (span["begin"], -span["end"]))
            open_ = []
            for span in lane:
                while open_ and open_[-1]["end"] <= span["begin"]:
                    open_.pop()
                if open_:
                    self.assertLessEqual(span["end"], open_[-1]["end"], (span, open_[-1]))
                span["parent"] = open_[-1]["name"] if open_ else None
                open_.append(span)
        return lanes


class Trace(TraceJob):
    def test_spans_of_four_ranks_nest_and_are_in_order_across_stages(self):
        config = self.config("run", trainer__total_training_steps=4, trainer__save_freq=2, **PIPELINE, **TRACE)
        self.train(config, ranks=4)
        done, events = self.traced("run")
        self.assertRegex(done.stdout, r"4 ranks, \d+ spans of steps \d+ to 4; one machine's clock")
        self.assertEqual(done.stderr, "")
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(sorted(names), [0, 1, 2, 3])
        stages = {rank: int(re.search(r"pp (\d)", name)[1]) for rank, name in names.items()}
        self.assertEqual(sorted(stages.values()), [0, 0, 1, 1])
        lanes = self.spans(events)
        found = {}
        for rank, stage in stages.items():
            training = lanes[rank, 0]
            for step in range(1, 5):
                of_step = [span for span in training if span["step"] == step]
                self.assertEqual([span["name"] for span in of_step].count("step"), 1)
                for name, parent in (("data", "step"), ("learn", "step"), ("forward, backward", "learn"), ("reduce", "learn"),
                                     ("sum loss and norm", "reduce"), ("optimizer", "learn")):  # fmt: skip
                    self.assertEqual([span["parent"] for span in of_step if span["name"] == name], [parent], (rank, step, name))
                for kind in ("forward", "backward"):
                    micro = [span for span in of_step if span["name"] == kind]
                    self.assertEqual([span["microbatch"] for span in micro], [0, 1, 2, 3])
                    self.assertEqual({(span["stage"], span["parent"]) for span in micro}, {(stage, "forward, backward")})
                    for span in micro:
                        found[rank, step, kind, span["microbatch"]] = span
            saver = lanes[rank, 1]
            self.assertEqual(sorted(span["step"] for span in saver if span["name"] == "save"), [2, 4])
            self.assertEqual({span["parent"] for span in saver if span["name"] in ("plan", "conclude")}, {"save"})
            # A thread that copies also writes, where there is no other for it.
            self.assertLessEqual({span["parent"] for span in saver if span["name"] == "write"}, {"save", "copy"})
            self.assertEqual({span["name"] for span in saver} >= {"publish", "begin"}, rank == 0)
            # Its threads have lanes of their own.
            threads = {lane for of, lane in lanes if of == rank} - {0, 1}
            written = {span["name"] for lane in threads for span in lanes[rank, lane]}
            self.assertLessEqual({"write", "sync"}, written | {span["name"] for span in saver})
        # A stage computes what the one before has computed: on one machine no clock may say otherwise.
        tp = {rank: int(re.search(r"tp (\d)", name)[1]) for rank, name in names.items()}
        for first in (rank for rank in stages if stages[rank] == 0):
            second = next(rank for rank in stages if stages[rank] == 1 and tp[rank] == tp[first])
            for step in range(1, 5):
                for m in range(4):
                    self.assertLess(found[first, step, "forward", m]["end"], found[second, step, "forward", m]["end"])
                    self.assertLess(found[second, step, "backward", m]["end"], found[first, step, "backward", m]["end"])
        # A few steps alone.
        part = self.spans(self.traced("run", "--steps", "2:3")[1])
        self.assertEqual({span["step"] for lane in part.values() for span in lane}, {2, 3})
        self.assertEqual([span for span in lanes[3, 0] if span["step"] in (2, 3)], part[3, 0])
        # Of none, the file that is there stays.
        out = self.folder / "run.trace.json"
        before = out.read_bytes()
        none = harness.keel("trace", self.run_dir("run"), "--out", out, "--steps", "99")
        self.assertEqual((none.returncode, "no span of it is of the steps 99" in none.stderr), (66, True), none.stderr)
        self.assertEqual(out.read_bytes(), before)

    def test_no_number_changes_and_only_the_steps_that_were_asked_for_are_noted(self):
        self.train(self.config("plain", trainer__total_training_steps=4, **PIPELINE), ranks=4)
        self.train(self.config("noted", trainer__total_training_steps=4, trainer__trace__steps=[2, 3], **PIPELINE, **TRACE), ranks=4)
        self.assertFalse((self.run_dir("plain") / "trace").exists())
        self.assertEqual(harness.keel("trace", self.run_dir("plain")).returncode, 66)
        self.assertEqual([harness.stable(step) for step in self.metrics("plain").values()],
                         [harness.stable(step) for step in self.metrics("noted").values()])  # fmt: skip
        lanes = self.spans(self.traced("noted")[1])
        self.assertEqual({span["step"] for lane in lanes.values() for span in lane}, {2, 3})

    def test_a_killed_run_has_what_it_did_and_goes_on(self):
        config = self.config("run", trainer__total_training_steps=6, trainer__save_freq=2, **TRACE)
        environment = {**harness.environment(), "KEEL_FAILPOINT": "step.begin:0:5:kill"}
        killed = harness.subprocess.run([harness.KEEL, "train", config], env=environment, capture_output=True, timeout=harness.LIMIT_S)
        self.assertEqual(killed.returncode, -9)
        file = self.run_dir("run") / "trace" / "rank_0.jsonl"
        first = self.spans(self.traced("run")[1])[0, 0]
        self.assertEqual(sorted(span["step"] for span in first if span["name"] == "step"), [1, 2, 3, 4])
        # As if the kill had come within the last write.
        file.write_bytes(file.read_bytes()[:-7])
        self.train(config)
        done, events = self.traced("run")
        self.assertIn("warning: 1 lines are left out: torn", done.stderr)
        steps = [span["step"] for span in self.spans(events)[0, 0] if span["name"] == "step"]
        self.assertEqual(sorted(set(steps)), [1, 2, 3, 4, 5, 6])
        # A run that begins anew is another one, whatever more ranks an earlier one had.
        for name in ("rank_1.jsonl", "rank_12.old.jsonl"):
            (file.parent / name).write_bytes(file.read_bytes().replace(b'"rank":0', b'"rank":1'))
        (file.parent / "rank_x.jsonl").write_bytes(b"of somebody else")
        self.train(config, "trainer.resume_mode=disable", "trainer.save_freq=-1", "trainer.total_training_steps=2")
        steps = [span["step"] for span in self.spans(self.traced("run")[1])[0, 0] if span["name"] == "step"]
        self.assertEqual(steps, [1, 2])
        self.assertEqual(sorted(path.name for path in file.parent.iterdir()), ["rank_0.jsonl", "rank_x.jsonl"])

    def test_a_full_disk_and_damaged_files_are_named(self):
        self.train(self.config("run", trainer__total_training_steps=2, **TRACE))
        folder = self.run_dir("run")
        (folder / "trace.json.partial").symlink_to("/dev/full")
        done = harness.keel("trace", folder)
        self.assertEqual(done.returncode, 74, done.stderr)
        self.assertIn("No space left on device (errno 28)", done.stderr)
        file = folder / "trace" / "rank_0.jsonl"
        file.write_bytes(file.read_bytes().replace(b"keel_trace", b"keel\0trace"))
        done = harness.keel("trace", folder)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("every file there is damaged", done.stderr)
        self.assertIn("rank_0.jsonl", done.stderr)

    def test_operators_of_single_steps_on_single_ranks(self):
        self.train(self.config("plain", trainer__total_training_steps=3), ranks=2)
        self.train(self.config("run", trainer__total_training_steps=3, trainer__profile__steps=[2, 3], trainer__profile__ranks=[1]), ranks=2)
        folder = self.run_dir("run") / "profile"
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["step_2.rank_1.json", "step_3.rank_1.json"])
        for path in folder.iterdir():
            events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
            operators = {event["name"] for event in events if event.get("cat") == "cpu_op"}
            self.assertTrue(any(name.startswith("aten::") for name in operators), sorted(operators)[:20])
        self.assertFalse((self.run_dir("plain") / "profile").exists())
        self.assertEqual([harness.stable(step) for step in self.metrics("plain").values()],
                         [harness.stable(step) for step in self.metrics("run").values()])  # fmt: skip


class TraceOfWorkers(TraceJob, split_test.SplitJob):
    def test_ranks_that_generate_note_what_they_do_beside_those_that_train(self):
        config = self.split("run", trainer__total_training_steps=4, async_training__max_staleness=1,
                            async_training__min_workers=2, algorithm__rollout_correction__rollout_is="token", **TRACE)  # fmt: skip
        done = self.launch(config, 1, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        done, events = self.traced("run")
        self.assertRegex(done.stdout, r"3 ranks, \d+ spans of steps \d+ to \d+; one machine's clock")
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertRegex(names[0], "^rank 0: tp 0, dp 0, pp 0, on ")
        for rank in (1, 2):
            self.assertRegex(names[rank], f"^rank {rank}: generates, on ")
        lanes = self.spans(events)
        named = {(event["pid"], event["args"]["name"]): event["tid"] for event in events if event["name"] == "thread_name"}
        of = {name: [span for (rank, lane), tid in named.items() if lane == name and rank > 0 for span in lanes[rank, tid]]
              for name in ("generation", "weights")}  # fmt: skip
        self.assertLessEqual({"generate", "take up weights"}, {span["name"] for span in of["generation"]})
        self.assertEqual({span["name"] for span in of["weights"]}, {"receive weights"})
        # Of each step whose weights generate: which ones are skipped is a matter of pace. Step 1 has none but the first weights, and
        # step 4 none older than step 3's.
        steps = {span["step"] for span in of["generation"] if span["name"] == "generate"}
        self.assertEqual((min(steps), max(steps) in (3, 4)), (1, True), steps)
        for rank in (1, 2):
            served = [span["step"] for span in lanes[rank, named[rank, "generation"]]]
            self.assertEqual(served, sorted(served))
        pushes = [span for span in lanes[0, named[0, "weights"]] if span["name"] == "push weights"]
        # On one axis: what a worker receives beside its work, the trainers send at that time. (The last push ends with the run.)
        for span in (span for span in of["weights"] if span["step"] < 5):
            self.assertTrue(any(push["begin"] < span["end"] and span["begin"] < push["end"] for push in pushes), span)


if __name__ == "__main__":
    unittest.main()
