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
            if metric.startswith("checkpoint/load/"):
                # Each start's load stays there, also that of one which went back to the same step; its line does not.
                self.assertLessEqual(set(expected), set(shown), metric)
                self.assertEqual({s for s, _ in shown}, {s for s, _ in expected}, metric)
                continue
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
    def test_no_other_file_is_replaced(self):
        for name in ("rows.jsonl", "pipe"):
            path = self.folder / name
            if name == "pipe":
                os.mkfifo(path)
            else:
                path.write_text('{"text": "mine"}\n')
            config = self.config("run", trainer__logger=SINKS, trainer__prometheus_file=str(path))
            done = harness.keel("train", config)
            self.assertEqual(done.returncode, 73, done.stderr)
            self.assertIn(f"trainer.prometheus_file: {path} is ", done.stderr)
            self.assertTrue(path.is_fifo() or path.read_text() == '{"text": "mine"}\n')

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


# What the packages are called by the scripts, and a record of it: {id: {name, config or tags, rows}}, oldest first.
FAKE_WANDB = """
import json, os, pathlib
OUT = pathlib.Path(os.environ["FAKE_OUT"])
class Config(dict):
    def update(self, given, allow_val_change=False):
        assert allow_val_change or not set(given) & set(self), "wandb refuses a change"
        super().update(given)
class Run:
    def log(self, row, step):
        if step >= self.step:
            self.kept["rows"].append([step, row])
    def finish(self):
        self.kept["config"] = dict(self.config)
        OUT.write_text(json.dumps(self.runs))
def init(id, resume, name, config, **given):
    assert resume == "allow"
    run = Run()
    run.runs = json.loads(OUT.read_text()) if OUT.exists() else {}
    run.resumed = id in run.runs
    run.kept = run.runs.setdefault(id, {"config": {}, "rows": []})
    run.kept["name"] = name
    run.config = Config({**run.kept["config"], **config})
    run.step = max([step + 1 for step, _ in run.kept["rows"]], default=0)
    return run
"""


FAKE_MLFLOW = """
import json, os, pathlib, types
OUT = pathlib.Path(os.environ["FAKE_OUT"])
class MlflowClient:
    def __init__(self):
        self.runs = json.loads(OUT.read_text()) if OUT.exists() else {}
    def keep(self):
        OUT.write_text(json.dumps(self.runs))
    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="1")
    def run(self, run_id):
        kept = self.runs[run_id]
        data = types.SimpleNamespace(tags=kept["tags"], metrics={name: value for name, value, _ in kept["rows"]})
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id), data=data)
    def search_runs(self, experiments):
        return [self.run(run_id) for run_id in self.runs]
    def create_run(self, experiment, run_name, tags):
        run_id = "r" + str(len(self.runs) + 1)
        self.runs[run_id] = {"name": run_name, "tags": tags, "rows": []}
        self.keep()
        return self.run(run_id)
    def set_tag(self, run_id, name, value):
        self.runs[run_id]["tags"][name] = value
        self.keep()
    def get_metric_history(self, run_id, name):
        return [types.SimpleNamespace(step=row[2]) for row in self.runs[run_id]["rows"] if row[0] == name]
    def log_batch(self, run_id, metrics):
        self.runs[run_id]["rows"] += [[m.key, m.value, m.step] for m in metrics]
        self.keep()
"""


class Exporter(Dashboard):
    def setUp(self):
        super().setUp()
        (self.folder / "wandb.py").write_text(FAKE_WANDB)
        package = self.folder / "mlflow"
        package.mkdir()
        (package / "__init__.py").write_text(FAKE_MLFLOW)
        (package / "entities.py").write_text("import collections\nMetric = collections.namedtuple('Metric', 'key value timestamp step')\n")

    def export(self, script, *arguments, **environment):
        return subprocess.run([sys.executable, TOOLS / script, *map(str, arguments)], capture_output=True, text=True, check=False,
                              env={**os.environ, **environment})  # fmt: skip

    def sent(self, service, *arguments, run="run"):
        """What a call with the fake package says, and the runs that the service has then."""
        out = self.folder / f"sent_{service}.json"
        done = self.export(f"export_{service}.py", self.run_dir(run), *arguments, PYTHONPATH=str(self.folder), FAKE_OUT=str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done, list(json.loads(out.read_text()).values())


class Exports(Exporter):
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
        with open(self.run_dir("run") / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 4, "data": {"x": "nan", "text": "none"}}\n{"step": 5, "da')
        for steps, flags in (([1, 2, 3], []), ([1, 2, 3, 4], ["--last"])):
            done, (run,) = self.sent("wandb", *flags)
            self.assertEqual("step 4 is the newest" in done.stdout, not flags)
            self.assertIn("metrics.jsonl:", done.stderr)  # the line that is not whole
            self.assertEqual([step for step, _ in run["rows"]], steps)
            self.assertIn("total_training_steps: 3", run["config"]["keel_config"])
        self.assertTrue(math.isnan(run["rows"][-1][1]["x"]))
        self.assertNotIn("text", run["rows"][-1][1])

    def test_what_comes_later_of_a_step_reaches_mlflow(self):
        """Its line of metrics is there before that of its validation."""
        lines = self.run_dir("run") / "metrics.jsonl"
        whole = lines.read_text() + '{"step": 3, "data": {"validation": 2.5}}\n'
        expected = {(r["step"], k) for r in map(json.loads, whole.splitlines()) for k, v in r["data"].items() if isinstance(v, (bool, int, float))}
        for text in (lines.read_text(), whole, whole):
            lines.write_text(text)
            done, (run,) = self.sent("mlflow")
        self.assertIn("0 values of 0 steps sent", done.stdout)
        self.assertEqual(len(run["rows"]), len(expected))
        self.assertIn(["validation", 2.5, 3], run["rows"])

    def test_a_run_that_goes_back_to_a_checkpoint_is_another_at_the_service(self):
        changes = {"trainer__total_training_steps": 5, "trainer__save_freq": 2}
        self.train(self.config("back", **changes))
        services = (("wandb", ["--last"]), ("mlflow", []))
        before = {service: self.sent(service, *flags, run="back")[1] for service, flags in services}
        checkpoint = str(self.run_dir("back") / "global_step_2")
        back = {**changes, "trainer__resume_mode": "resume_path", "trainer__resume_from_path": checkpoint}
        # The same steps again, as after a crash: times alone are others.
        self.train(self.config("back", **back))
        for service, flags in services:
            self.assertEqual(len(self.sent(service, *flags, run="back")[1]), 1)
        self.train(self.config("back", **back, actor_rollout_ref__actor__optim__lr=0.01))
        for service, flags in services:
            done, (first, second) = self.sent(service, *flags, run="back")
            self.assertIn("the first step that differs is 3: all of it goes to a run of its own, back (from step 3)", done.stdout)
            self.assertGreaterEqual(len(first["rows"]), len(before[service][0]["rows"]))
            self.assertEqual({row[0 if service == "wandb" else 2] for row in second["rows"]}, {1, 2, 3, 4, 5})
            done, runs = self.sent(service, *flags, run="back")
            self.assertEqual(len(runs), 2)


class Anew(Exporter):
    """The lines of a run are others than those that were sent."""

    def setUp(self):
        super().setUp()
        self.run_dir("run").mkdir()

    def write(self, values, end=""):
        """A line a step, from 1 on."""
        lines = [json.dumps({"step": step, "data": {"x": value}}) + "\n" for step, value in enumerate(values, 1)]
        (self.run_dir("run") / "metrics.jsonl").write_text("".join(lines) + end)

    def values(self, service, run):
        """Of x, in order of steps."""
        rows = [(step, row["x"]) for step, row in run["rows"]] if service == "wandb" else [(step, value) for _, value, step in run["rows"]]
        self.assertEqual([step for step, _ in rows], list(range(1, len(rows) + 1)))
        return [value for _, value in rows]

    def flags(self, service):
        return ["--last"] if service == "wandb" else []

    def check(self, files, expected, said):
        """Each of `files` is exported in turn: to runs with the values `expected`, each of which follows the one before from the step that `said` has."""
        for service in ("wandb", "mlflow"):
            for values in files:
                self.write(values)
                done, runs = self.sent(service, *self.flags(service))
            self.assertEqual([self.values(service, run) for run in runs], expected, service)
            ids = list(json.loads((self.folder / f"sent_{service}.json").read_text()))
            for before, run, step in zip(ids[:-1], runs[1:], said, strict=True):
                told = run["config"] if service == "wandb" else run["tags"]
                follows, differs = ("keel_follows", "keel_differs_from_step") if service == "wandb" else ("keel.follows", "keel.differs_from_step")
                self.assertEqual((told[follows], told[differs], run["name"]), (before, step, f"run (from step {step})"))
            if said:
                self.assertEqual("the first step that differs" in done.stdout, files[-1] != files[-2], done.stdout)

    def test_a_plain_continuation_stays_one_run(self):
        self.check([[1], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4]], [[1, 2, 3, 4]], [])

    def test_a_branch_begins_a_run(self):
        self.check([[1, 2, 3, 4], [1, 2, 30]], [[1, 2, 3, 4], [1, 2, 30]], ["3"])

    def test_what_goes_on_after_a_branch_goes_to_its_run(self):
        self.check([[1, 2, 3, 4], [1, 2, 30], [1, 2, 30, 40, 50], [1, 2, 30, 40, 50]], [[1, 2, 3, 4], [1, 2, 30, 40, 50]], ["3"])

    def test_branches_of_branches_follow_each_other(self):
        self.check([[1, 2, 3], [1, 20], [1, 20, 30], [1, 20, 31]], [[1, 2, 3], [1, 20, 30], [1, 20, 31]], ["2", "3"])

    def test_steps_that_are_gone_differ(self):
        self.check([[1, 2, 3, 4], [1, 2]], [[1, 2, 3, 4], [1, 2]], ["3"])

    def test_a_new_beginning_begins_a_run(self):
        self.check([[1, 2, 3], [], [10]], [[1, 2, 3], [10]], ["1"])

    def test_the_first_step_that_differs_is_told_within_a_thousandth(self):
        self.check([list(range(2500)), [*range(2000), -1]], [list(range(2500)), [*range(2000), -1]], ["1999 to 2001"])

    def test_the_newest_step_may_still_become_another_at_wandb(self):
        """It was not sent."""
        for values in ([1, 2, 3], [1, 2, 30], [1, 2, 30, 40]):
            self.write(values)
            done, runs = self.sent("wandb")
        self.assertEqual([self.values("wandb", run) for run in runs], [[1, 2, 30]])
        # One that --last has sent may not, also where a call without it came since.
        for values, flags in (([1, 2, 30, 40], ["--last"]), ([1, 2, 30, 40], []), ([1, 2, 30, 41], ["--last"])):
            self.write(values)
            done, runs = self.sent("wandb", *flags)
        self.assertEqual([self.values("wandb", run) for run in runs], [[1, 2, 30, 40], [1, 2, 30, 41]])
        self.assertIn("the first step that differs is 4", done.stdout)

    def test_a_run_of_an_older_version_goes_on_and_is_checked_from_then_on(self):
        for service, config, key in (("wandb", "config", "keel_lines_sent"), ("mlflow", "tags", "keel.lines_sent")):
            self.write([1, 2, 3])
            self.sent(service, *self.flags(service))
            out = self.folder / f"sent_{service}.json"
            runs = json.loads(out.read_text())
            for run in runs.values():
                del run[config][key]
            out.write_text(json.dumps(runs))
            self.write([1, 2, 30, 40])
            done, runs = self.sent(service, *self.flags(service))
            self.assertIn("does not say which lines it was sent", done.stdout)
            self.assertEqual([self.values(service, run) for run in runs], [[1, 2, 3, 40]])
            done, runs = self.sent(service, *self.flags(service))
            self.assertNotIn("does not say", done.stdout)
            self.write([1, 2, 31])
            done, runs = self.sent(service, *self.flags(service))
            self.assertIn("the first step that differs is 3", done.stdout)
            self.assertEqual([self.values(service, run) for run in runs], [[1, 2, 3, 40], [1, 2, 31]])

    def test_lines_that_are_no_metrics_are_left_out_and_counted(self):
        data = '"data": {"x": 9}}\n'
        steps = ["1e400", "1.5", "NaN", "true", '"7"', "-1", "9223372036854775808", "null", "[]"]
        bad = [f'{{"step": {step}, {data}' for step in steps]
        bad += ["[]\n", "7\n", "\n", "{}\n", '{"step": 9}\n', '{"step": 9, "data": [["x", 9]]}\n', "[" * 100000 + "\n"]
        bad += ['{"step": 9, "data": {"x": 1' + "0" * 400 + "}}\n"]
        for service in ("wandb", "mlflow"):
            self.write([1, 2])
            self.sent(service, *self.flags(service))
            self.write([1, 2, 3], "".join(bad))
            with open(self.run_dir("run") / "metrics.jsonl", "ab") as file:
                file.write(b'{"step": 9, "data": {"\xc3')  # a piece of a letter
            done, (run,) = self.sent(service, *self.flags(service))
            self.assertEqual(self.values(service, run), [1, 2, 3])
            self.assertIn(f"; left out: {len(bad) + 1} lines that are no metrics\n", done.stdout)
            self.assertEqual(done.stderr.count("left out, it is no line of metrics"), len(bad) + 1)
            self.assertNotIn("Traceback", done.stderr)
            # Keel takes them out when the run goes on.
            self.write([1, 2, 3, 4])
            done, (run,) = self.sent(service, *self.flags(service))
            self.assertEqual(self.values(service, run), [1, 2, 3, 4])
            self.assertNotIn("left out", done.stdout)


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
