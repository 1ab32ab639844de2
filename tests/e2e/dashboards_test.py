"""A run's metrics as dashboards read them: TensorBoard's own reader, Prometheus' text format, and the scripts that
send metrics.jsonl elsewhere. The reader comes from PyPI (pypi.py); without it the tests that need it are skipped."""

import collections
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import unittest

import harness
import pypi
from rl_test import RlJob

PACKAGES = [pypi.unpacked(name) for name in ("tensorboard==2.21.0", "protobuf==7.36.2", "absl-py==2.5.1")]
if all(PACKAGES):
    sys.path += map(str, PACKAGES)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
SINKS = ["jsonl", "tensorboard", "prometheus"]


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


class Dashboard(harness.Job):
    def read(self, folder):
        everything = {"scalars": 0, "histograms": 0, "tensors": 0}
        return EventAccumulator(str(folder), size_guidance=everything).Reload()

    def numbers(self, name):
        """{metric: [(step, value)]} of metrics.jsonl, as float32."""
        found = collections.defaultdict(list)
        for record in harness.read_jsonl(self.run_dir(name) / "metrics.jsonl"):
            for metric, value in record["data"].items():
                value = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
                if isinstance(value, (bool, int, float)):
                    found[metric].append((record["step"], as_float32(float(value))))
        return found

    def shows_what_the_lines_say(self, name, folder):
        events, lines = self.read(folder), self.numbers(name)
        # The reader keeps the names of points that were taken back.
        self.assertEqual(sorted(tag for tag in events.Tags()["scalars"] if events.Scalars(tag)), sorted(lines))
        for metric, expected in lines.items():
            shown = [(e.step, e.value) for e in events.Scalars(metric)]
            self.assertEqual([s for s, _ in shown], [s for s, _ in expected], metric)
            if not metric.startswith("checkpoint/"):  # of which a step may have several
                self.assertEqual(len({s for s, _ in shown}), len(shown), metric)
            self.assertTrue(all(same(a, b) for (_, a), (_, b) in zip(shown, expected, strict=True)), metric)
        return events


@unittest.skipUnless(all(PACKAGES), "tensorboard cannot be had from PyPI")
class TensorBoard(Dashboard):
    def test_each_step_stands_once_after_kills_and_resumes(self):
        changes = {"trainer__logger": SINKS, "trainer__save_freq": 4, "trainer__total_training_steps": 400, "data__val_split": 0.2,
                   "trainer__test_freq": 3}  # fmt: skip
        config = self.config("killed", **changes)
        for until in (6, 11):
            process = self.start(config, failpoint="step.begin:0:30:stop")  # it does not end before it is killed
            self.wait_until(lambda until=until: max(self.metrics("killed"), default=0) >= until, f"step {until}", process)
            harness.end_with_children(process)
        # A piece of an event, as a crash of the machine leaves it.
        folder = self.run_dir("killed") / "tensorboard"
        newest = max(folder.iterdir())
        with open(newest, "ab") as file:
            file.write(b"\x40\0\0\0\0\0\0\0\x01")
        last = max(self.metrics("killed")) + 5
        self.train(self.config("killed", **{**changes, "trainer__total_training_steps": last}))
        self.assertEqual(len(list(folder.iterdir())), 3)
        events = self.shows_what_the_lines_say("killed", folder)
        steps = [e.step for e in events.Scalars(harness.LOSS)]
        self.assertEqual(steps, list(range(1, last + 1)))
        # A run that begins anew is not mixed with the one before.
        anew = {**changes, "trainer__total_training_steps": 2, "trainer__resume_mode": "disable", "trainer__save_freq": -1}
        self.train(self.config("killed", **anew))
        self.shows_what_the_lines_say("killed", folder)

    def test_a_folder_that_cannot_be_written_is_a_warning_that_counts(self):
        (self.folder / "file").write_text("")
        config = self.config("lost", trainer__logger=SINKS, trainer__total_training_steps=3, trainer__tensorboard_dir=str(self.folder / "file" / "tb"),
                             trainer__prometheus_file=str(self.folder / "none" / "x.prom"))  # fmt: skip
        done = self.train(config)
        said = done.stdout + done.stderr
        self.assertEqual(len(self.metrics("lost")), 3)
        self.assertRegex(said, "metrics are being lost from step 1 on: open .*/file/tb/events")
        self.assertRegex(said, "[0-9]+ of the [0-9]+ events that this run had")
        self.assertRegex(said, "x.prom: stays behind the run from step 1 on")


class Prometheus(Dashboard):
    def test_the_file_holds_the_newest_of_every_metric(self):
        path = self.folder / "node.prom"
        self.train(self.config("run", trainer__logger=SINKS, trainer__total_training_steps=3, trainer__save_freq=2, trainer__prometheus_file=str(path)))
        found = {}
        for line in path.read_text().splitlines():
            if not line.startswith("# TYPE "):
                name, value = re.fullmatch(r'([a-z_A-Z0-9]+)\{run="run",rank="0"\} (\S+)', line).groups()
                self.assertNotIn(name, found)
                found[name] = float(value)
        self.assertEqual(found["keel_step"], 3)
        lines = harness.read_jsonl(self.run_dir("run") / "metrics.jsonl")
        newest = {}
        for record in lines:
            newest.update({k: v for k, v in record["data"].items() if isinstance(v, (int, float))})
        for metric, value in newest.items():
            self.assertEqual(found["keel_" + re.sub("[^A-Za-z0-9]", "_", metric)], value, metric)
        self.assertEqual(len(found), len(newest) + 2)


class Loggers(Dashboard):
    def test_verls_loggers_that_are_services_are_refused_with_the_way_to_them(self):
        for logger in ("wandb", "mlflow"):
            for value in ([logger], ["console", logger]):
                done = harness.keel("train", self.config("x", trainer__logger=value))
                self.assertEqual(done.returncode, 78)
                self.assertIn(f"tools/export_{logger}.py", done.stderr)
        done = harness.keel("train", self.config("x"), "trainer.logger=wandb")
        self.assertEqual(done.returncode, 78)
        self.assertIn("tools/export_wandb.py", done.stderr)


# What the packages are called by the scripts, and a record of it.
FAKE_WANDB = """
import json, os
class Run:
    step = int(os.environ["FAKE_STEP"]); resumed = step > 0
    def log(self, row, step): self.out.append([step, row])
    def finish(self): json.dump(self.out, open(os.environ["FAKE_OUT"], "w"))
def init(**given):
    run = Run(); run.out = [given]; return run
"""


FAKE_MLFLOW = """
import json, os, pathlib, types
OUT = pathlib.Path(os.environ["FAKE_OUT"])
class MlflowClient:
    def __init__(self):
        self.sent = json.loads(OUT.read_text()) if OUT.exists() else []
    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="1")
    def run(self):
        tags = {"keel.run_folder": os.environ["FAKE_RUN"]} if self.sent else {}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"), data=types.SimpleNamespace(tags=tags, metrics={m[0]: m[1] for m in self.sent}))
    def search_runs(self, experiments):
        return [self.run()] if self.sent else []
    def create_run(self, experiment, run_name, tags):
        return self.run()
    def get_metric_history(self, run, name):
        return [types.SimpleNamespace(step=m[2]) for m in self.sent if m[0] == name]
    def log_batch(self, run, metrics):
        self.sent += [[m.key, m.value, m.step] for m in metrics]
        OUT.write_text(json.dumps(self.sent))
"""


class Exports(Dashboard):
    def export(self, script, *arguments, **environment):
        return subprocess.run([sys.executable, TOOLS / script, *map(str, arguments)], capture_output=True, text=True, check=False,
                              env={**os.environ, **environment})  # fmt: skip

    def setUp(self):
        super().setUp()
        self.train(self.config("run", trainer__total_training_steps=3, trainer__save_freq=3))

    def test_a_dry_run_says_what_would_be_sent(self):
        lines = harness.read_jsonl(self.run_dir("run") / "metrics.jsonl")
        values = {(r["step"], k) for r in lines for k, v in r["data"].items() if isinstance(v, (bool, int, float))}
        names = {name for _, name in values}
        for script, bracket in (("export_wandb.py", "gemm_share(%)"), ("export_mlflow.py", "gemm_share___")):
            done = self.export(script, self.run_dir("run"), "--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{len(values)} values of {len(names)} metrics at 3 steps, 1 to 3", done.stdout)
            self.assertIn(f"  {bracket}\n", done.stdout)
            self.assertIn(", run run: ", done.stdout)
            done = self.export(script, self.folder / "none", "--dry-run")
            self.assertEqual(done.returncode, 1)
            self.assertIn("none/metrics.jsonl: no such file", done.stderr)

    def test_without_the_package_it_says_so(self):
        for name in ("wandb", "mlflow"):
            done = self.export(f"export_{name}.py", self.run_dir("run"))
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"the package {name} cannot be imported", done.stderr)
            self.assertIn("--dry-run", done.stderr)

    def test_every_number_is_sent_once(self):
        (self.folder / "wandb.py").write_text(FAKE_WANDB)
        with open(self.run_dir("run") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 4, "data": {"x": "nan", "text": "none"}}\n{"step": 5, "da')
        out = self.folder / "sent.json"
        for first, steps, flags in ((0, [1, 2, 3], []), (3, [3, 4], ["--last"])):
            done = self.export("export_wandb.py", self.run_dir("run"), *flags, PYTHONPATH=str(self.folder), FAKE_OUT=str(out), FAKE_STEP=str(first))
            self.assertEqual("step 4 is the newest" in done.stdout, not flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("metrics.jsonl:", done.stderr)  # the line that is not whole
            given, *rows = json.loads(out.read_text())
            self.assertEqual([step for step, _ in rows], steps)
            self.assertEqual(given["resume"], "allow")
            self.assertIn("total_training_steps: 3", given["config"]["keel_config"])
        self.assertTrue(math.isnan(rows[-1][1]["x"]))
        self.assertNotIn("text", rows[-1][1])


    def test_what_comes_later_of_a_step_reaches_mlflow(self):
        """Its line of metrics is there before that of its validation."""
        package = self.folder / "mlflow"
        package.mkdir()
        (package / "__init__.py").write_text(FAKE_MLFLOW)
        (package / "entities.py").write_text("import collections\nMetric = collections.namedtuple('Metric', 'key value timestamp step')\n")
        lines = self.run_dir("run") / "metrics.jsonl"
        whole = lines.read_text() + '{"step": 3, "data": {"validation": 2.5}}\n'
        expected = {(r["step"], k) for r in map(json.loads, whole.splitlines()) for k, v in r["data"].items() if isinstance(v, (bool, int, float))}
        for text in (lines.read_text(), whole, whole):
            lines.write_text(text)
            done = self.export("export_mlflow.py", self.run_dir("run"), PYTHONPATH=str(self.folder), FAKE_OUT=str(self.folder / "sent.json"),
                               FAKE_RUN=str(self.run_dir("run").resolve()))  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("0 values of 0 steps sent", done.stdout)
        sent = json.loads((self.folder / "sent.json").read_text())
        self.assertEqual(len(sent), len(expected))
        self.assertIn(["validation", 2.5, 3], sent)


@unittest.skipUnless(all(PACKAGES), "tensorboard cannot be had from PyPI")
class Reinforcement(Dashboard, RlJob):
    def test_lengths_scores_and_answers_are_shown(self):
        dump = self.folder / "dump"
        config = self.rl("rl", trainer__logger=SINKS, trainer__total_training_steps=2, trainer__test_freq=1, trainer__rollout_data_dir=str(dump))
        self.train(config)
        events = self.shows_what_the_lines_say("rl", self.run_dir("rl") / "tensorboard")
        for step in (1, 2):
            rows = harness.read_jsonl(dump / f"{step}.jsonl")
            for tag, values in (("response_length", [len(r["response_ids"]) for r in rows]), ("critic/score", [r["score"] for r in rows])):
                (histogram,) = [h.histogram_value for h in events.Histograms(tag) if h.step == step]
                self.assertEqual((histogram.num, histogram.min, histogram.max), (len(values), min(values), max(values)))
                self.assertAlmostEqual(histogram.sum, sum(values))
                self.assertEqual(sum(histogram.bucket), len(values))
        texts = events.Tensors("val/sample_1")
        self.assertEqual([t.step for t in texts], [1, 2])
        prompt = harness.read_jsonl(self.folder / "val.jsonl")[0]["prompt"]
        text = texts[0].tensor_proto.string_val[0].decode()
        self.assertRegex(text, rf"score [0-9.]+\n\nprompt\n\n    {prompt}\n\nresponse\n\n    ")
        self.assertEqual(events.SummaryMetadata("val/sample_1").plugin_data.plugin_name, "text")
        self.assertEqual(sum(tag.startswith("val/sample_") for tag in events.Tags()["tensors"]), 5)


if __name__ == "__main__":
    unittest.main()
