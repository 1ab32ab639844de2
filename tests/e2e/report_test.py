"""`keel report`: the page of a run says what metrics.jsonl says, needs no net, and stays small."""

import html.parser
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import pathlib

import browser
import harness

HOSTILE = "</script><script>alert('x')</script>\x1b[31m\"'&"
METRICS = (
    "loss_metrics/global_avg_loss validation_metrics/global_avg_loss grad_norm lr throughput(tps) mfu(%) gemm_share(%) memory/max_rss(GiB) val/loss "
    "time_metrics/data_loading(s) time_metrics/forward_backward(s) time_metrics/reduce(s) time_metrics/optimizer(s) "
    "critic/score/mean critic/rewards/mean actor/ppo_kl actor/entropy actor/pg_clipfrac response_length/mean "
    "response_length/max response_length/min response_length/clip_ratio timing_s/gen timing_s/reward timing_s/update_actor"
).split()


class Reader(html.parser.HTMLParser):
    """The text of the page, its attributes, and the numbers that it holds for programs."""

    VOID = {"meta", "path", "br"}

    def __init__(self, page):
        super().__init__()
        self.open, self.attributes, self.data, self.tags, self.text = [], [], None, [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1][1].get("id") == "data":
            self.data = json.loads(data)
        else:
            self.text += data


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-report-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_folder(self, name, steps, metrics=METRICS, seed=1, lr="0.001"):
        chance = random.Random(seed)
        folder = self.folder / name
        folder.mkdir()
        with open(folder / "metrics.jsonl", "w", encoding="utf-8") as out:
            for step in range(1, steps + 1):
                data = {metric: chance.random() * 10 ** chance.randrange(-9, 9) for metric in metrics}
                out.write(json.dumps({"step": step, "data": data}) + "\n")
        (folder / "config.yaml").write_text(
            f"trainer:\n  seed: {seed}\n  rollout_data_dir: {folder}/dump\nactor_rollout_ref:\n  actor:\n    optim:\n      lr: {lr}\n"
            "reward:\n  url: http://me:hunter2@host/\n"
        )
        return folder

    def page(self, *folders):
        done = harness.keel("report", *folders, "-o", self.folder / "page.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.folder / "page.html").read_text(encoding="utf-8")

    def values(self, folder):
        found = {}
        for record in harness.read_jsonl(folder / "metrics.jsonl"):
            for name, value in record["data"].items():
                found.setdefault(name, {}).setdefault(record["step"], []).append(value)
        return found

    def says_what_the_lines_say(self, shown, folder, points):
        values = self.values(folder)
        self.assertTrue(shown["metrics"])
        for metric, drawn in shown["metrics"].items():
            self.assertEqual(len(drawn["steps"]), len(drawn["values"]))
            self.assertLessEqual(len(drawn["steps"]), points)
            for step, value in zip(drawn["steps"], drawn["values"], strict=True):
                self.assertIn(value, values[metric][step], (metric, step))
            numbers = [v for of_step in values[metric].values() for v in of_step if not isinstance(v, str)]
            finite = [v for v in drawn["values"] if not isinstance(v, str)]
            self.assertEqual((min(finite), max(finite)), (min(numbers), max(numbers)), metric)

    def test_ten_thousand_steps_of_two_runs_are_a_small_page_of_their_own_numbers(self):
        runs = [self.run_folder("a", 10_000), self.run_folder("b", 10_000, seed=2, lr="0.002")]
        page = self.page(*runs)
        self.assertLess(len(page.encode()), 1 << 20)
        reader = Reader(page)
        for shown, folder in zip(reader.data, runs, strict=True):
            self.assertEqual(shown["run"], folder.name)
            self.says_what_the_lines_say(shown, folder, 200)
        self.assertEqual(set(reader.data[1]["metrics"]), {m for m in METRICS if not m.startswith(("timing_s/", "time_metrics/"))})
        self.assertEqual(set(reader.data[0]["metrics"]), set(METRICS))
        # Nothing is fetched, and nothing runs.
        for name, value in reader.attributes:
            self.assertNotIn(name, ("src", "href", "srcset", "action", "onload", "onclick", "xlink:href"))
            self.assertNotRegex(value or "", "https?:|url\\(|@import")
        self.assertNotRegex(page, "@import|url\\(")
        self.assertEqual(reader.tags.count("script"), 1)
        self.assertIn("svg", reader.tags)
        self.assertRegex(reader.text, r"actor_rollout_ref\.actor\.optim\.lr0\.0010\.002")
        self.assertNotIn("hunter2", page)
        self.assertIn("(not shown)", page)

    def test_runs_of_one_name_are_told_apart_by_their_folders(self):
        folders = []
        for parent in ("a", "b"):
            folders.append(self.folder / parent / "run")
            folders[-1].mkdir(parents=True)
            (folders[-1] / "metrics.jsonl").write_text('{"step": 1, "data": {"loss_metrics/global_avg_loss": 1.0}}\n')
        done = harness.keel("report", *folders, "-o", self.folder / "both.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "both.html").read_text()
        self.assertIn(f"<title>{folders[0]} and {folders[1]}<", page)
        self.assertIn(f"both.html: {folders[0]} 1 steps, {folders[1]} 1 steps, ", done.stdout)

    def test_few_steps_are_all_drawn(self):
        folder = self.run_folder("few", 3)
        reader = Reader(self.page(folder))
        for metric in METRICS:
            drawn = reader.data[0]["metrics"][metric]
            self.assertEqual(drawn["steps"], [1, 2, 3])
            self.assertEqual(drawn["values"], [self.values(folder)[metric][step][0] for step in (1, 2, 3)])

    def stacked(self, steps, lines):
        """The tops of the stacked areas, [(step, seconds)] by series, as the page draws them."""
        folder = self.run_folder(f"stacked{steps}", steps, metrics=["lr"])
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.writelines(json.dumps({"step": step, "data": {f"time_metrics/{name}(s)": value for name, value in data.items()}}) + "\n"
                           for step, data in lines)  # fmt: skip
        figure = re.search("<h3>Seconds of a step, by part.*?</figure>", self.page(folder), re.S).group()
        labels = [float(value) for value in re.findall("class=y>([^<]*)", figure)]
        grid = [float(y) for y in re.findall(r"class=grid d='M\d+ ([\d.]+)H", figure)]
        drawn = []
        for path in re.findall(r"opacity:.8' d='M([^Z]*)Z", figure):
            points = [tuple(map(float, point.split())) for point in path.split("L")]
            half = points[: len(points) // 2]
            scale = (labels[-1] - labels[0]) / (grid[0] - grid[-1])
            drawn.append([(round((x - 64) / 476 * steps, 1), round((grid[0] - y) * scale, 1)) for x, y in half])
        return drawn

    def test_parts_of_a_step_stand_where_the_step_is(self):
        lines = [(step, {"forward_backward": step}) for step in range(1, 5)] + [(4, {"validation": 8})]
        # The last one has what it took alone, and none begins with nothing.
        self.assertEqual(self.stacked(4, lines), [[(1, 1), (2, 2), (3, 3), (4, 4)], [(1, 1), (2, 2), (3, 3), (4, 12)]])
        # What one of several steps took is spread over them, so that areas are seconds.
        lines = [(step, {"forward_backward": 1}) for step in range(1, 161)] + [(step, {"validation": 8}) for step in range(10, 161, 10)]
        below, above = self.stacked(160, lines)
        self.assertEqual((len(below), {value for _, value in below}), (80, {1}))
        self.assertEqual([value for _, value in above], ([1] * 4 + [5]) * 16)
        self.assertEqual((above[0][0], above[-1][0]), (1, 159))

    @unittest.skipUnless(browser.CHROMIUM, "no Chromium is installed")
    def test_in_a_browser_it_is_as_wide_as_the_window(self):
        self.page(self.run_folder("wide", 30))
        page = browser.Page(self, f"file://{self.folder}/page.html")
        for _ in range(300):
            if page.evaluate("document.readyState === 'complete' && document.querySelectorAll('svg').length > 5"):
                break
            time.sleep(0.1)
        for width in (1200, 900, 500):
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        self.assertEqual(page.errors(), [])

    def test_hostile_names_and_answers_are_text(self):
        folder = self.run_folder("x<b>&", 2, metrics=[HOSTILE, "lr"])
        lines = [{"step": 3, "data": {"lr": "nan", "grad_norm": "inf", "actor/entropy": "nan", "reward/errors": 2}},
                 {"step": 1, "data": {"actor/kl_loss": 1e308}}, {"step": 2, "data": {"actor/kl_loss": -1e308}}]  # fmt: skip
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.write("".join(json.dumps(line) + "\n" for line in lines) + "no line\n{\"step\": 4, \"da")
        (folder / "dump").mkdir()
        for step in (2, 10):
            (folder / "dump" / f"{step}.jsonl").write_text("".join(json.dumps({"row": i, "score": i / 4, "output": f"{HOSTILE}\n{step}"}) + "\n" for i in range(9)))
        saves = [{"event": "save", "step": 1, "total_bytes": 3 << 20, "lost_s": 0.5}, {"event": "save", "step": 2, "total_bytes": 3 << 20, "removed": [1]},
                 {"event": "load", "step": 2}, {"event": "save_failed", "step": 3}]  # fmt: skip
        (folder / "checkpoints.jsonl").write_text("".join(json.dumps(save) + "\n" for save in saves))
        page = self.page(folder)
        reader = Reader(page)
        self.assertEqual(reader.tags.count("script"), 1)
        self.assertNotIn("b", reader.tags)
        self.assertNotIn("\x1b", page)
        self.assertEqual(reader.text.count("<script>"), 6)  # its name among all metrics, and five answers
        self.assertEqual(len(re.findall("row [0-9]+, score", reader.text)), 5)
        self.assertIn("10.jsonl", reader.text)
        for text in ("2 lines of metrics.jsonl are no metrics", "2 responses have no score", "1 save failed", "went on from a checkpoint once"):
            self.assertIn(text, reader.text)
        self.assertRegex(reader.text, r"13\.00\.500removed\s*23\.00\.000\s*30\.00\.000failed")
        self.assertEqual(reader.data[0]["metrics"]["lr"]["values"][2], "nan")
        self.assertEqual(reader.data[0]["metrics"]["grad_norm"]["values"], ["inf"])
        self.assertRegex(reader.text, r"actor/entropyx<b>&1(nan){4}")
        self.assertTrue(math.isfinite(reader.data[0]["metrics"]["lr"]["values"][0]))
        self.assertEqual(reader.data[0]["metrics"]["actor/kl_loss"]["values"], [1e308, -1e308])
        self.assertNotRegex(page, " d='[^']*(nan|inf)")

    def test_the_status_of_a_run_without_metrics_does_not_count_its_steps(self):
        (self.folder / "global_step_3").mkdir()
        done = harness.keel("status", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("not known: there is no metrics.jsonl yet, or trainer.logger is without jsonl", done.stdout)
        (self.folder / "metrics.jsonl").write_text("")
        self.assertIn("none yet", harness.keel("status", self.folder).stdout)

    def test_the_status_of_a_run_says_what_its_kind_is_judged_by(self):
        for name, seconds in (("loss_metrics/global_avg_loss", "time_metrics/end_to_end(s)"), ("critic/score/mean", "timing_s/step"),
                              ("train/loss", "timing_s/step")):  # fmt: skip
            line = {"step": 3, "data": {name: 0.25, seconds: 1.5, "other": 7.0}}
            (self.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            self.assertIn(f"step        3  {name} 0.25  {seconds} 1.5\n", harness.keel("status", self.folder).stdout)

    def test_what_cannot_be_read_is_said(self):
        (self.folder / "global_step_3").mkdir()
        (self.folder / "metrics.jsonl").mkdir()
        done = harness.keel("status", self.folder)
        self.assertEqual((done.returncode, "metrics.jsonl: expected a file" in done.stderr), (65, True), done.stderr)
        (self.folder / "metrics.jsonl").rmdir()
        (self.folder / "metrics.jsonl").symlink_to("metrics.jsonl")
        done = harness.keel("status", self.folder)
        self.assertEqual((done.returncode, "Too many levels of symbolic links" in done.stderr), (74, True), done.stderr)
        folder = self.run_folder("run", 2)
        for name in ("config.yaml", "metrics.jsonl"):
            kept = (folder / name).read_bytes()
            (folder / name).unlink()
            (folder / name).symlink_to(name)  # a loop: nobody can read it
            for command in ("report", "watch"):
                done = harness.keel(command, folder, *(["--once"] if command == "watch" else []))
                self.assertNotEqual(done.returncode, 0, (command, done.stdout))
                self.assertIn("Too many levels of symbolic links", done.stderr)
                self.assertIn(name, done.stderr)
            (folder / name).unlink()
            (folder / name).write_bytes(kept)

    def test_answers_are_those_of_the_run(self):
        """A path of its configuration is relative to where training was started."""
        start, elsewhere = self.folder / "start", self.folder / "elsewhere"
        for root, said in ((start, "OF THE RUN"), (elsewhere, "OF ANOTHER")):
            (root / "runs/dump").mkdir(parents=True)
            (root / "runs/dump/2.jsonl").write_text(json.dumps({"output": said, "score": 1.0}) + "\n")
        folder = self.run_folder("start/runs/a", 2)
        for own, known in (("runs/a", True), ("./runs/a/", True), (str(folder), False), ("runs/moved", False)):
            (folder / "config.yaml").write_text(f"trainer:\n  default_local_dir: {own}\n  rollout_data_dir: runs/dump\n")
            for place, name in ((elsewhere, folder), (start, "runs/a"), (folder, ".")):
                with self.subTest(own=own, place=place.name):
                    done = subprocess.run([harness.KEEL, "report", name, "-o", self.folder / "page.html"], cwd=place,
                                          env=harness.environment(), capture_output=True, text=True, check=True)  # fmt: skip
                    page = (self.folder / "page.html").read_text(encoding="utf-8")
                    self.assertEqual(("OF THE RUN" in page, "OF ANOTHER" in page), (known, False), done.stderr)
                    self.assertEqual("from where training was started, and the run does not say" in page, not known)

    def test_saves_that_a_later_one_took_the_place_of_are_gone(self):
        folder = self.run_folder("run", 4)
        with open(folder / "checkpoints.jsonl", "w", encoding="utf-8") as out:
            for step in (2, 4, 4):
                out.write(json.dumps({"event": "save", "step": step, "total_bytes": step << 20, "lost_s": 0.5}) + "\n")
        text = Reader(self.page(folder)).text
        self.assertRegex(text, r"2\s*2\.0\s*0\.500\s*4\s*4\.0\s*0\.500\s*removed\s*4\s*4\.0\s*0\.500")

    def test_what_is_no_run_is_refused(self):
        done = harness.keel("report", self.folder)
        self.assertEqual(done.returncode, 66)
        self.assertIn("expected the folder of a run (trainer.default_local_dir)", done.stderr)
        folder = self.run_folder("run", 1)
        done = harness.keel("report", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((folder / "report.html").exists())
        # A slip in a name costs no file of the run's, and a page is written over.
        self.assertEqual(harness.keel("report", folder).returncode, 0)
        for command in ("report", "trace"):
            before = (folder / "metrics.jsonl").read_bytes()
            if command == "trace":
                (folder / "trace").mkdir()
                (folder / "trace/rank_0.jsonl").write_text("")
            done = harness.keel(command, folder, "-o", folder / "metrics.jsonl")
            self.assertEqual((folder / "metrics.jsonl").read_bytes(), before)
            self.assertIn(done.returncode, (65, 73), done.stderr)
        done = harness.keel("report", folder, "-o", folder / "metrics.jsonl")
        self.assertEqual(done.returncode, 73, done.stderr)
        self.assertIn("metrics.jsonl is there, and is none of this command's: name another file", done.stderr)
        # Where nothing can be written, the way out is named.
        (folder / "report.html").unlink()
        (folder / "report.html").mkdir()
        done = harness.keel("report", folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the run's folder, or where --output says", done.stderr)
        # Nor does a page take the place of what is no file: of /dev/null, say.
        os.mkfifo(folder / "pipe")
        for command in ("report", "trace"):
            done = harness.keel(command, folder, "-o", folder / "pipe")
            self.assertIn(done.returncode, (65, 73), done.stderr)
            self.assertTrue((folder / "pipe").is_fifo())
        self.assertIn("pipe is a pipe, and a whole file would take its place", harness.keel("report", folder, "-o", folder / "pipe").stderr)

class NewestCheckpoint(harness.Job):
    def test_the_status_of_a_run_names_the_newest_commit_whatever_the_tracker_says(self):
        """A run was killed between its commit and the tracker; then the tracker names what is not there, or is no file."""
        config = self.config("run", trainer__total_training_steps=4, trainer__save_freq=2, actor_rollout_ref__actor__checkpoint__async_save=False)
        process = self.start(config, failpoint="commit.renamed:0:2:kill")
        self.assertEqual(process.wait(timeout=harness.LIMIT_S), -9, self.log()[-3000:])
        tracker = self.run_dir("run") / "latest_checkpointed_iteration.txt"
        self.assertEqual(tracker.read_text(), "2\n")

        def check():
            listed = json.loads(harness.keel("ckpt", "ls", self.run_dir("run"), "--json").stdout)
            self.assertEqual([(entry["step"], entry["valid"]) for entry in listed][:1], [(4, True)], listed)
            done = harness.keel("status", self.run_dir("run"))
            self.assertEqual((done.returncode, "checkpoint  step 4\n" in done.stdout), (0, True), done.stdout + done.stderr)

        check()
        tracker.write_text("77\n")
        check()
        tracker.unlink()
        check()
        tracker.mkdir()
        check()
        tracker.rmdir()
        tracker.symlink_to(tracker.name)
        check()
        shutil.rmtree(self.run_dir("run") / "global_step_4")
        self.assertIn("checkpoint  step 2\n", harness.keel("status", self.run_dir("run")).stdout)
        (self.run_dir("run") / "global_step_2" / "manifest.json").unlink()
        self.assertIn("checkpoint  none\n", harness.keel("status", self.run_dir("run")).stdout)



if __name__ == "__main__":
    unittest.main()
