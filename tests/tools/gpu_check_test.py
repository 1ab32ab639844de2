"""tools/gpu_check.sh and its page, where there is no GPU: a dry run on the host, and one whose result is wrong."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["KEEL_BUILD"])
PARTS = ["env", "tests", "agree", "determinism", "layouts", "rl", "train", "decode", "save", "offload", "sync", "tools"]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="keel-gpu-check-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, *arguments, build=BUILD, **environment):
        out = self.folder / "out"
        done = subprocess.run([ROOT / "tools/gpu_check.sh", out, *arguments], capture_output=True, text=True, timeout=800,
                              env={**os.environ, **environment, "KEEL_BUILD": str(build)}, check=False)  # fmt: skip
        path = out / "gpu.json"
        return done, json.loads(path.read_text()) if path.exists() else None

    def test_a_dry_run_on_the_host(self):
        # Time is no part of it: the parts have shares of an hour.
        done, result = self.check("--dry-run", "--device", "cpu", "--seconds", "3600")
        parts = {part["name"]: part for part in result["parts"]}
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(list(parts), PARTS)
        self.assertTrue(result["dry_run"])
        for name, part in parts.items():
            self.assertEqual(part["status"], "absent" if name == "tools" else "passed", part)
        self.assertEqual(parts["agree"]["figures"]["log_prob_difference"], 0)
        self.assertEqual(parts["determinism"]["figures"]["killed_after_step"], 3)
        self.assertLess(parts["layouts"]["figures"]["loss_difference"], 1e-3)
        self.assertLess(parts["rl"]["figures"]["log_prob_difference"], 1e-2)
        self.assertEqual(parts["rl"]["figures"]["log_prob_difference_batch_invariant"], 0)
        self.assertGreater(parts["train"]["figures"]["1"]["tokens_per_s"], 0)
        self.assertGreater(parts["train"]["figures"]["peer"]["ways"]["eager"]["tokens_per_s"], 0)
        slowest = parts["train"]["figures"]["slowest"]
        # (A processor that does not multiply bf16 itself has no aten::mm, but products of its own.)
        self.assertTrue(any(name == "aten::mm" or "LinearFunction" in name for name in slowest), slowest)
        self.assertTrue(all(0 < one["share"] < 1 for one in slowest.values()), slowest)
        self.assertEqual(set(parts["decode"]["figures"]["peer"]["tokens_per_s"]), {"1", "4"})
        self.assertTrue(parts["save"]["figures"]["saves"])
        peer = parts["save"]["figures"]["peer"]
        self.assertGreater(peer["async_save"]["done_s"], peer["async_save"]["returned_s"])
        offload = parts["offload"]["figures"]
        self.assertEqual(offload["bytes"], offload["peer"]["bytes"])  # the same state of the same model
        self.assertEqual(parts["sync"]["figures"]["bytes"], parts["sync"]["figures"]["peer"]["bytes"])
        self.assertGreater(parts["sync"]["figures"]["seconds"], 0)
        self.assertFalse((self.folder / "out" / "work").exists(), "it leaves its runs")

        page = subprocess.run(["python3", ROOT / "tools/gpu_report.py", self.folder / "out/gpu.json"], capture_output=True, text=True, check=True)
        self.assertIn("a dry run: its figures measure nothing", page.stdout)
        self.assertIn("| determinism | G2 | passed |", page.stdout)
        self.assertIn("| tools | G1 | absent |", page.stdout)

    def test_a_dry_run_on_one_pretend_gpu(self):
        """The device's branches of the script itself; tests/support/pretend_gpu."""
        if not (BUILD / "libkeel_pretend_gpu.so").exists():
            self.skipTest("no pretend GPU: the torch wheel is one without CUDA")
        module = {"KEEL_CUDA_MODULE": str(BUILD / "libkeel_pretend_gpu.so"), "KEEL_PRETEND_GPUS": "1"}
        done, result = self.check("--dry-run", "--device", "cuda", "--seconds", "3600", "--only", "determinism,layouts,rl,offload,sync", **module)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([part["status"] for part in result["parts"]], ["passed"] * 5, result)
        _, layouts, _, offload, sync = (part["figures"] for part in result["parts"])
        for figures in (layouts, sync):
            self.assertEqual(figures["messages"], "gloo, by way of the host")
        self.assertGreaterEqual(offload["given_back_bytes"], offload["bytes"])
        self.assertEqual(offload["moves_over_cycles_bytes"], 0)

    def test_what_does_not_hold_fails_and_the_rest_goes_on(self):
        build = self.folder / "build"
        build.mkdir()
        keel = build / "keel"
        keel.write_text(f'#!/bin/sh\n[ "$1" = ckpt ] && {{ echo "not the same"; exit 1; }}\nexec {BUILD}/keel "$@"\n')
        keel.chmod(0o755)
        done, result = self.check("--dry-run", "--device", "cpu", "--seconds", "3600", "--only", "determinism,layouts", build=build)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        first, second = result["parts"]
        self.assertEqual((first["name"], first["status"]), ("determinism", "failed"))
        self.assertIn("global_step_6 of first and second differ: not the same", first["why"])
        self.assertEqual((second["name"], second["status"]), ("layouts", "passed"), second)

    def test_what_ends_it_ends_what_it_started(self):
        """A GPU is not kept from whoever comes next, and OUT has figures alone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number=number):
                folder = self.folder / number.name
                build, out, work = folder / "build", folder / "out", folder / "work"
                build.mkdir(parents=True)
                work.mkdir()
                keel = build / "keel"
                keel.write_text(f'#!/bin/sh\necho $$ > {folder}/begun.tmp\nmv {folder}/begun.tmp {folder}/begun\nexec sleep 600\n')
                keel.chmod(0o755)
                check = subprocess.Popen([ROOT / "tools/gpu_check.sh", out, "--device", "cpu", "--only", "agree", "--work", work],
                                         env={**os.environ, "KEEL_BUILD": str(build)}, stdout=subprocess.DEVNULL)  # fmt: skip
                self.wait_for((folder / "begun").exists)
                pid = int((folder / "begun").read_text())
                check.send_signal(number)
                check.wait(timeout=60)
                self.wait_for(lambda pid=pid: not is_alive(pid))
                self.assertEqual({file.name for file in out.iterdir()}, {"gpu.json", "log.txt"})
                self.assertEqual(json.loads((out / "gpu.json").read_text())["parts"], [])
                if number == signal.SIGTERM:
                    self.assertEqual(list(work.iterdir()), [], "it leaves its runs")

    def test_what_is_late_says_what_it_said(self):
        build = self.folder / "build"
        build.mkdir()
        keel = build / "keel"
        keel.write_text("#!/bin/sh\necho at the door\nexec sleep 600\n")
        keel.chmod(0o755)
        done, result = self.check("--device", "cpu", "--only", "env", "--seconds", "20", build=build)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(result["parts"][0]["why"], "not done in its time: .*keel doctor.*: at the door")

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, "it did not happen")
            time.sleep(0.05)

    def test_what_is_packed_runs_by_itself(self):
        # As it is sent where little may be: in one file.
        made = self.folder / "made"
        subprocess.run([ROOT / "tools/gpu_pack.sh", "--archive", made], env={**os.environ, "KEEL_BUILD": str(BUILD)}, check=True, capture_output=True)
        self.assertLess((self.folder / "made.tar.gz").stat().st_size, 40 << 20)
        pack = self.folder / "there/made"
        pack.parent.mkdir()
        subprocess.run(["tar", "-xzf", self.folder / "made.tar.gz", "-C", pack.parent], check=True)
        self.assertLessEqual({"keel", "libkeel_torch.so", "libkeel_cuda.so", "keel_bench", "libkeel_bench_torch.so"}, {file.name for file in (pack / "bin").iterdir()})
        out = self.folder / "out"
        environment = {key: value for key, value in os.environ.items() if key != "KEEL_BUILD"}
        done = subprocess.run([pack / "gpu_check.sh", out, "--dry-run", "--device", "cpu", "--only", "env,rl,offload"], env=environment,
                              capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads((out / "gpu.json").read_text())
        self.assertEqual([part["status"] for part in result["parts"]], ["passed"] * 3, result)
        self.assertIn((pack / "commit").read_text().strip(), result["commit"])
        # It is of this script's making alone that it is made anew.
        (pack / "gpu_check.sh").unlink()
        again = subprocess.run([ROOT / "tools/gpu_pack.sh", pack], env={**os.environ, "KEEL_BUILD": str(BUILD)}, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("is no folder of this script's", again.stderr)

    def test_usage(self):
        for arguments, code in ((["--only", "nothing"], 2), (["--device", "tpu"], 2)):
            done, result = self.check(*arguments)
            self.assertEqual(done.returncode, code, done)
            self.assertIsNone(result)


if __name__ == "__main__":
    unittest.main()
