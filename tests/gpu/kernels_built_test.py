"""What nvcc and ptxas made of Keel's kernels: each for every kind of GPU, without spills; and that the build refuses a kernel that
spills. Skipped where no nvcc was found when the build was configured."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["KEEL_BUILD"])
NVCC = os.environ["KEEL_NVCC"]
ARCHITECTURES = {"sm_80", "sm_90a", "sm_100a"}
# Of 65,536 registers: with so many two blocks of 256 threads run on a processor at once.
MOST_REGISTERS = 128

if not NVCC:
    print(f"SKIPPED: {os.environ['KEEL_NVCC_REASON']}")
    sys.exit(77)

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<spilled>\d+) bytes spill stores.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


class KernelsBuilt(unittest.TestCase):
    def test_each_kernel_is_there_for_each_gpu_and_spills_nothing(self):
        sources = sorted((ROOT / "gpu/cuda").glob("*.cu"))
        self.assertGreater(len(sources), 5)
        for source in sources:
            report = (BUILD / "gpu" / f"{source.stem}.ptxas.txt").read_text()
            entries = [match.groupdict() for match in ENTRY.finditer(report)]
            self.assertEqual(len(entries), report.count("Compiling entry function"), source.name)
            by_architecture = {of: {e["name"] for e in entries if e["architecture"] == of} for of in ARCHITECTURES}
            self.assertGreater(len(by_architecture["sm_90a"]), 0, source.name)
            for names in by_architecture.values():
                self.assertEqual(names, by_architecture["sm_90a"], source.name)
            for entry in entries:
                self.assertEqual(entry["spilled"], "0", entry)
                self.assertLessEqual(int(entry["registers"]), MOST_REGISTERS, entry)

    def test_the_module_has_them(self):
        # The names of kernels, by which the runtime finds them, and the code for each GPU.
        module = (BUILD / "libkeel_cuda.so").read_bytes()
        for body in (b"RmsNormBody", b"GatedUnitBackwardBody", b"RotateBody", b"AdamWBody", b"TokenStatisticsBody", b"TokenChoiceBody", b"AttentionPartBody"):
            self.assertIn(body, module)
        self.assertIn(b".nv_fatbin", module)

    def test_a_kernel_that_spills_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="keel-kernels-") as folder:
            folder = pathlib.Path(folder)
            source = folder / "spill.cu"
            source.write_text(
                "__global__ void Spill(float* x) {\n"
                "  float kept[64];\n"
                "#pragma unroll\n"
                "  for (int i = 0; i < 64; ++i) kept[i] = x[i * 32];\n"
                "  __syncthreads();\n"
                "#pragma unroll\n"
                "  for (int i = 0; i < 64; ++i) x[i * 32 + 1] = kept[i] * kept[63 - i];\n"
                "}\n"
            )
            for registers, refused in ((255, False), (24, True)):
                done = subprocess.run(
                    ["cmake", "-D", f"NVCC={NVCC}", "-D", f"SOURCE={source}", "-D", f"OBJECT={folder / 'spill.o'}",
                     "-D", f"DEPFILE={folder / 'spill.d'}", "-D", f"REPORT={folder / 'spill.txt'}",
                     "-D", f"FLAGS=-O3;-gencode=arch=compute_90a,code=sm_90a;-maxrregcount={registers}",
                     "-P", ROOT / "cmake/CompileKernels.cmake"],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                self.assertEqual(done.returncode != 0, refused, done.stderr)
                self.assertEqual((folder / "spill.o").exists(), not refused)
                if refused:
                    self.assertIn("spills registers", done.stderr)


if __name__ == "__main__":
    unittest.main()
