"""`keel watch`: a run while it goes on, in a terminal, through a pipe and as a page."""

import fcntl
import http.client
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import browser
import harness

FRAME = re.compile(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[J\x1b\[\?2026l", re.DOTALL)
HOSTILE = "</pre><img src=x onerror='document.title=\"taken\"'>\x1b[2J"


class Watched(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-watch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_folder = self.folder / "run"

    def begin(self, total=40):
        self.run_folder.mkdir()
        (self.run_folder / "config.yaml").write_text(
            f"trainer:\n  total_training_steps: {total}\n  rollout_data_dir: {self.run_folder}/dump\nreward:\n  url: http://me:hunter2@h/\n"
        )

    def step(self, step, loss):
        data = {"loss_metrics/global_avg_loss": loss, "throughput(tps)": 1000, "time_metrics/end_to_end(s)": 2.0}
        with open(self.run_folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, "data": data}) + "\n")

    def wait_until(self, holds, what):
        end = time.monotonic() + harness.LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)


class Terminal:
    """`keel watch` on a terminal of its own."""

    def __init__(self, test, folder, columns, rows):
        self.test = test
        self.far, near = pty.openpty()
        test.addCleanup(os.close, self.far)
        self.near = near
        test.addCleanup(os.close, near)
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(near)
        self.process = subprocess.Popen(
            [harness.KEEL, "watch", folder, "--interval", "0.1"], stdin=near, stdout=near, stderr=near,
            env=harness.environment(), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        test.addCleanup(harness.end_with_children, self.process)
        self.seen = b""

    def resize(self, columns, rows):
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def text(self):
        while select.select([self.far], [], [], 0)[0]:
            self.seen += os.read(self.far, 65536)
        return self.seen.decode("utf-8", "replace")

    def frame(self):
        """The lines of the last one that is whole."""
        frames = FRAME.findall(self.text())
        return [line.strip("\r").removesuffix("\x1b[K") for line in frames[-1].split("\n")] if frames else []

    def shows(self, text):
        self.test.wait_until(lambda: any(text in line for line in self.frame()), f"{text} in {self.frame()}")


class InATerminal(Watched):
    def test_from_before_the_run_begins_to_the_key_that_leaves(self):
        screen = Terminal(self, self.run_folder, 80, 24)
        screen.shows("has not begun")
        self.begin()
        self.step(1, 5.0)
        screen.shows("1/40 (2 %)")
        with open(self.run_folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.write('{"step": 2, "data": {"loss_met')
        time.sleep(0.3)  # a few looks
        self.assertFalse(any("no metrics" in line for line in screen.frame()))
        with open(self.run_folder / "metrics.jsonl", "a", encoding="utf-8") as out:
            out.write('rics/global_avg_loss": 4.0}}\n')
        screen.shows("4.0000")
        # The run goes on from an earlier step, in a file of its own.
        (self.run_folder / "checkpoints.jsonl").write_text('{"event": "load", "step": 1}\n')
        (self.run_folder / "kept").write_text('{"step": 1, "data": {"loss_metrics/global_avg_loss": 7.5}}\n')
        (self.run_folder / "kept").rename(self.run_folder / "metrics.jsonl")
        screen.shows("7.5000")
        screen.shows("went on from a checkpoint once")
        for columns, rows in ((31, 9), (200, 50), (12, 3)):
            screen.resize(columns, rows)
            os.killpg(screen.process.pid, signal.SIGWINCH)
            self.wait_until(lambda: 0 < len(screen.frame()) <= rows and max(map(len, screen.frame())) <= columns, "the frame fits")
        os.write(screen.far, b"q")
        self.assertEqual(screen.process.wait(harness.LIMIT_S), 0)
        self.wait_until(lambda: screen.text().endswith("\x1b[?25h\x1b[?1049l"), "the terminal is given back")
        self.assertEqual(termios.tcgetattr(screen.near), screen.modes)

    def test_control_c_and_a_signal_leave_the_terminal_as_it_was(self):
        self.begin()
        self.step(1, 5.0)
        for leave in (lambda s: os.write(s.far, b"\x03"), lambda s: s.process.terminate()):
            screen = Terminal(self, self.run_folder, 80, 24)
            screen.shows("5.0000")
            leave(screen)
            self.assertEqual(screen.process.wait(harness.LIMIT_S), 0)
            self.wait_until(lambda s=screen: s.text().endswith("\x1b[?25h\x1b[?1049l"), "the terminal is given back")
            self.assertEqual(termios.tcgetattr(screen.near), screen.modes)


class ThroughAPipe(Watched):
    def test_once(self):
        done = harness.keel("watch", self.run_folder, "--once")
        self.assertEqual((done.returncode, "there is no such folder" in done.stderr), (66, True), done.stderr)
        self.begin()
        done = harness.keel("watch", self.run_folder, "--once")
        self.assertEqual((done.returncode, "has not begun" in done.stdout), (0, True), done.stderr)
        for step in range(1, 31):
            self.step(step, 9 / step)
        done = harness.keel("watch", self.run_folder, "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("30/40 (75 %), 0:00:20 left", done.stdout)
        self.assertNotIn("\x1b", done.stdout)

    def test_once_says_that_nothing_could_be_printed(self):
        self.begin()
        self.step(1, 5.0)
        for redirect, code in ((">/dev/full", 74), (">&-", 0)):
            done = subprocess.run(["bash", "-c", f'exec "$@" {redirect}', "keel", harness.KEEL, "watch", self.run_folder, "--once"],
                                  env=harness.environment(), capture_output=True, text=True, check=False)  # fmt: skip
            self.assertEqual((done.returncode, "write standard output" in done.stderr), (code, code != 0), done)

    def test_watching_ends_where_nothing_can_be_printed(self):
        self.begin()
        done = subprocess.run(["bash", "-c", 'exec "$@" >/dev/full', "keel", harness.KEEL, "watch", self.run_folder],
                              env=harness.environment(), capture_output=True, text=True, check=False, timeout=harness.LIMIT_S)  # fmt: skip
        self.assertEqual((done.returncode, "write standard output" in done.stderr), (74, True), done)

    def test_whether_a_process_holds_the_lock(self):
        self.begin()
        self.step(1, 5.0)
        lock = self.run_folder / ".keel-lock"

        def state(*before):
            done = subprocess.run([*before, harness.KEEL, "watch", self.run_folder, "--once"], env=harness.environment(),
                                  capture_output=True, text=True, check=True)  # fmt: skip
            return re.search(r"state +([^;\n]*)", done.stdout)[1]

        self.assertEqual(state(), "is not running")
        lock.write_text(f"run a, host {socket.gethostname()}, pid 1, since 2026\n")
        self.assertTrue(state().startswith("was killed, or lost its machine: run a"), state())
        with open(lock, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertEqual(state(), "running")
            apart = ("unshare", "--pid", "--fork", "--mount-proc")
            if shutil.which(apart[0]) and subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
                # /proc/locks shows no lock of another container there.
                self.assertEqual(state(*apart), "running")
            else:
                print("no namespace of processes can be made here: locks of other containers are not looked at", file=sys.stderr)
        self.assertTrue(state().startswith("was killed"))
        lock.write_text("run a, host of-another, pid 1, since 2026\n")
        self.assertTrue(state().startswith("running: run a, host of-another"), state())
        lock.unlink()
        lock.symlink_to(lock)  # nobody can read it
        self.assertTrue(state().startswith("not known: open "), state())

    def test_a_frame_for_each_change_until_nobody_reads(self):
        self.begin()
        self.step(1, 5.0)
        process = subprocess.Popen([harness.KEEL, "watch", self.run_folder, "--interval", "0.05"], stdout=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, text=True, env=harness.environment())  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        frames = []
        for step in range(2, 5):
            lines = []
            while not lines or not lines[-1].startswith("last step"):
                lines.append(process.stdout.readline())
            frames.append("".join(lines))
            self.step(step, 5.0 - step)
        self.assertEqual([re.search(r"^step +(\d+)/", frame, re.MULTILINE)[1] for frame in frames], ["1", "2", "3"])
        process.stdout.close()
        self.step(5, 1.0)
        self.assertEqual(process.wait(harness.LIMIT_S), 0)


class Page(Watched):
    def serve(self, *arguments, key=None):
        environment = {**harness.environment(), **({"KEEL_API_KEY": key} if key else {})}
        process = subprocess.Popen([harness.KEEL, "watch", self.run_folder, "--interval", "0.1", "--http", *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        self.addCleanup(process.stdout.close)
        said = process.stdout.readline()
        self.assertIn("watching", said)
        self.port = int(said.rstrip().rstrip("/").rsplit(":", 1)[1])
        return process

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.LIMIT_S)
        self.addCleanup(connection.close)
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), dict(reply.getheaders())

    def test_answers_and_refusals(self):
        self.begin()
        self.step(1, 5.0)
        process = self.serve("0")
        status, page, headers = self.get("/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotRegex(page, "https?:|url\\(|@import|src=")
        first = json.loads(self.get("/after/-1")[1])
        self.assertIn("<td>1/40 (2 %)", first["html"])
        self.assertNotIn("hunter2", first["html"])
        self.step(2, 4.0)
        self.wait_until(lambda: "<td>2/40" in json.loads(self.get("/after/-1")[1])["html"], "the next step")
        for path, method, wanted in (("/etc/passwd", "GET", 404), ("/after/x", "GET", 404), ("/after/", "GET", 404), ("/", "DELETE", 405)):
            self.assertEqual(self.get(path, method)[0], wanted, path)
        self.assertEqual(self.get("/metrics")[0], 404)
        (self.run_folder / "metrics.prom").write_text("# TYPE keel_grad_norm gauge\nkeel_grad_norm 4\n")
        status, text, headers = self.get("/metrics")
        self.assertEqual((status, text), (200, "# TYPE keel_grad_norm gauge\nkeel_grad_norm 4\n"))
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        # A page of another site, whose name was made to resolve to this machine.
        self.assertEqual(self.get("/after/-1", Host="evil.example")[0], 421)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(harness.LIMIT_S), 0)

    def test_others_need_the_key(self):
        self.begin()
        for address in ("0.0.0.0:0", "host:x", "1.2.3.4:99999", ":", ""):
            done = harness.keel("watch", self.run_folder, f"--http={address}")
            self.assertEqual(done.returncode, 64, address + done.stdout)
        self.assertIn("KEEL_API_KEY", harness.keel("watch", self.run_folder, "--http", "0.0.0.0:0").stderr)
        self.serve("0.0.0.0:0", key="a key of this test")
        self.assertEqual(self.get("/")[0], 200)
        self.assertEqual(self.get("/after/-1")[0], 401)
        self.assertEqual(self.get("/after/-1", Authorization="Bearer a key of that test")[0], 401)
        self.assertEqual(self.get("/after/-1", Authorization="Bearer a key of this test")[0], 200)

    @unittest.skipUnless(browser.CHROMIUM, "no Chromium is installed")
    def test_the_page_in_a_browser(self):
        """It follows the run by itself, asks for the key, shows what is hostile as text, and says when the server is gone."""
        self.begin()
        for step in range(1, 4):
            self.step(step, 9 / step)
        (self.run_folder / "dump").mkdir()
        (self.run_folder / "dump" / "1.jsonl").write_text(json.dumps({"row": 1, "score": 0.5, "output": HOSTILE}) + "\n")
        process = self.serve("0", key="a key of this test")
        page = browser.Page(self, f"http://127.0.0.1:{self.port}/")
        self.wait_until(lambda: page.evaluate("document.readyState === 'complete' && !document.getElementById('ask').hidden"), "it asks")
        refused = page.errors()  # the answer 401 is one for the browser's console
        self.assertEqual(len(refused), 1)
        page.evaluate("at('key').value = 'a key of this test'; at('ask').requestSubmit()")
        cells = "Object.fromEntries([...document.querySelectorAll('.state tr')].map(r => [...r.cells].map(c => c.textContent)))"
        self.wait_until(lambda: page.evaluate(cells).get("step", "").startswith("3/40"), "the state is there")
        self.assertEqual(page.evaluate("at('link').textContent"), "live")
        self.assertEqual(page.evaluate("document.title"), "run")
        self.assertGreaterEqual(page.evaluate("document.querySelectorAll('svg').length"), 2)
        self.assertIn("<img src=x", page.evaluate("[...document.querySelectorAll('pre')].map(p => p.textContent).join()"))
        self.assertEqual(page.evaluate("document.querySelectorAll('#run img, #run script').length"), 0)
        drawn = "document.querySelector('#run svg .line').getAttribute('d').split(/[ML]/).length - 1"
        self.assertEqual(page.evaluate(drawn), 3)
        self.step(4, 1.0)
        self.wait_until(lambda: page.evaluate(cells)["step"].startswith("4/40"), "it follows")
        self.assertEqual(page.evaluate(drawn), 4)
        self.assertEqual(page.errors(), refused)
        process.terminate()
        self.assertEqual(process.wait(harness.LIMIT_S), 0)
        self.wait_until(lambda: "is not reached" in page.evaluate("at('link').textContent"), "it says that the server is gone")


if __name__ == "__main__":
    unittest.main()
