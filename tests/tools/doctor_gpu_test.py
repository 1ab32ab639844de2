"""What keel doctor says of a GPU by the module that meets one (keel_cuda), with answers of CUDA's runtime made up, where there is
none: tests/support/pretend_gpu/said_gpu.cc."""

import os
import subprocess
import sys
import tempfile
import unittest

KEEL = os.environ["KEEL_BINARY"]
SAID = os.environ.get("KEEL_SAID_GPU", "")

if not os.path.exists(SAID):
    print("SKIPPED: the torch wheel is one without CUDA")
    sys.exit(77)


class DoctorGpu(unittest.TestCase):
    def test_a_gpu_is_described_before_anything_is_computed_on_it(self):
        with tempfile.TemporaryDirectory(prefix="keel-doctor-") as folder:
            done = subprocess.run([KEEL, "doctor", folder], capture_output=True, text=True, check=False, env={**os.environ, "LD_PRELOAD": SAID})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"cuda +1 usable GPU, driver")
        self.assertRegex(done.stdout, r"gpu 0 +said GPU, sm_90, 80\.0 GiB, 79\.0 free, CUDA 13\.0")


if __name__ == "__main__":
    unittest.main()
