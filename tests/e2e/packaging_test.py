"""What is installed runs where nothing of this tree is: a prefix that was moved, the Debian package in a root that has nothing but
what it depends on, the wheel in an environment of its own. Each goes through the quickstart's first minute. And what is said where
PyTorch is missing or another, or a copy is not whole.

The roots need mount namespaces; without them those cases are skipped, and say so."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import bare_root
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(harness.KEEL).parent
SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
UNAVAILABLE, USAGE = 69, 64
MODULES = ("libkeel_torch.so", "libkeel_watch.so", "libkeel_cuda.so", "libkeel_arrow.so")
# What the quickstart does first, shorter: a configuration, a run on two ranks, a proof of it, a model out of it, its words.
FIRST_MINUTE = """
set -eu
export OMP_NUM_THREADS=1
cd "$(mktemp -d)"
keel --version
keel doctor | grep "torch from"
keel config example quickstart > quickstart.yaml
for i in $(seq 300); do echo "The quick brown fox jumps over the lazy dog."; done > text.txt
keel launch --nproc-per-node 2 train quickstart.yaml 'data.train_files=[text.txt]' trainer.default_local_dir=run \
  trainer.total_training_steps=2 trainer.save_freq=2 data.train_batch_size=8 data.max_length=32 \
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
keel ckpt verify run/global_step_2
keel ckpt export-hf run/global_step_2 exported
printf '{"text": "The quick"}\\n' > prompts.jsonl
keel generate --model exported --input prompts.jsonl --output - --max-new-tokens 4
echo "the first minute is over"
"""

packages = {}


def sh(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=4 * harness.LIMIT_S, **options)


def setUpModule():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-packages-"))
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    done = sh("cmake", "--install", BUILD, "--prefix", folder / "first", "--strip")
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    (folder / "elsewhere").mkdir()
    packages["prefix"] = (folder / "first").rename(folder / "elsewhere" / "keel installed here")
    done = sh(ROOT / "tools" / "package.sh", "--fast", "--build", BUILD, "--out", folder)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    print(done.stdout)
    packages["deb"], packages["wheel"] = next(folder.glob("*.deb")), next(folder.glob("*.whl"))


def elf_files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def dynamic(file, tag):
    text = sh("readelf", "-d", file).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


class Packaging(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-packaging-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def fake_torch(self, version, folder="venv/lib/python3.11/site-packages/torch"):
        torch = self.folder / folder
        (torch / "lib").mkdir(parents=True)
        (torch / "version.py").write_text(f"__version__ = '{version}'\n")
        (torch / "lib" / "libtorch_cpu.so").write_bytes(b"not a library")
        python = self.folder / "venv" / "bin" / "python3"
        python.parent.mkdir(exist_ok=True, parents=True)
        python.write_text("#!/bin/sh\necho\n")
        python.chmod(0o755)
        return torch

    def needs_namespaces(self):
        if bare_root.unshare() is None:
            self.skipTest("SKIPPED: this user may not make a mount namespace (unshare --mount)")

    def assertOver(self, done):
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertTrue(done.stdout.endswith("the first minute is over\n"), done.stdout[-2000:])
        self.assertIn('"output":', done.stdout)


class Prefix(Packaging):
    def keel(self, *arguments, prefix=None, **environment):
        bare = {"PATH": f"{self.folder}/none", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        return sh((prefix or packages["prefix"]) / "bin" / "keel", *arguments, env={**bare, **environment}, cwd=self.folder)

    def doctor(self, **options):
        """What it says of PyTorch: doctor goes on without."""
        return self.keel("score", "--model", "none", "--input", "i", "--output", "o", **options)

    def copy(self):
        target = self.folder / "copy"
        shutil.copytree(packages["prefix"], target)
        return target

    def test_the_tree_is_whole_and_knows_no_place(self):
        prefix = packages["prefix"]
        there = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
        wanted = {"bin/keel", "lib/keel/libkeel_torch.so", "share/keel/configs/quickstart.yaml", "share/keel/configs/keel.schema.json",
                  "share/keel/tools/export_wandb.py", "share/keel/tools/metrics_lines.py", "share/man/man1/keel.1",
                  "share/man/man1/keel-ckpt-ls.1", "share/man/man5/keel.yaml.5", "share/bash-completion/completions/keel",
                  "share/zsh/vendor-completions/_keel", "share/fish/vendor_completions.d/keel.fish", "share/doc/keel/LICENSE",
                  "share/doc/keel/docs/install.md", "share/keel/examples/slurm/train.sbatch"}  # fmt: skip
        self.assertEqual(wanted - there, set())
        self.assertFalse([name for name in there if "bench" in name.split("/")[-1] and name.startswith(("bin", "lib"))])
        for path in [*(prefix / "bin").iterdir(), *(prefix / "lib/keel").glob("*.so")]:
            paths = [*dynamic(path, "RPATH"), *dynamic(path, "RUNPATH")]
            self.assertEqual(paths, ["$ORIGIN/../lib/keel" if path.name == "keel" else "$ORIGIN"], path)
            content = path.read_bytes()
            for place in (ROOT, BUILD, SITE, packages["prefix"].parents[1]):
                found = re.findall(rb"[ -~]*" + re.escape(bytes(place)) + rb"/[ -~]*", content)
                self.assertEqual(found, [], f"{path}: {place}")
        self.assertIn("build id", sh("readelf", "-n", prefix / "lib/keel/libkeel_torch.so").stdout.lower())

    def test_every_page_of_the_help_is_one_of_the_manual(self):
        pages = {path.name for path in (packages["prefix"] / "share/man/man1").iterdir()}
        from checkout import helps

        commands = {name.replace(" ", "-") + ".1" for name in helps() if not name.startswith("keel bench ")}
        self.assertEqual(pages, commands)

    def test_moved_and_with_this_tree_out_of_sight_it_runs(self):
        self.needs_namespaces()
        # An environment with PyTorch, of which python3 is never started: its folder is enough.
        venv = self.folder / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python3").symlink_to("/bin/false")
        script = f"export PATH='{packages['prefix']}/bin:{venv}/bin':/usr/bin:/bin\nunset VIRTUAL_ENV KEEL_TORCH_DIR KEEL_PYTHON\n{FIRST_MINUTE}"
        binds = [(SITE, f"{venv}/lib/python3.11/site-packages")]
        self.assertOver(bare_root.run_hidden([ROOT], script, binds))

    def test_parquet_is_read_by_the_pyarrow_of_the_environment(self):
        if not (BUILD / "libkeel_arrow.so").exists():
            self.skipTest("SKIPPED: built without pyarrow")
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), self.folder / "rows.parquet")
        done = self.keel("data", "info", "rows.parquet", KEEL_ARROW_DIR=str(SITE / "pyarrow"))
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("2", done.stdout)
        done = self.keel("data", "info", "rows.parquet")
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        for said in ("rows.parquet", "pyarrow", "pip install pyarrow==", "KEEL_ARROW_DIR"):
            self.assertIn(said, done.stderr)

    def test_without_pytorch_it_says_where_it_looked_and_what_to_do(self):
        done = self.doctor()
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        for said in ("PyTorch 2.11 is not to be found", "lib/keel/torch: nothing there", "pip install torch==2.11.0", "KEEL_TORCH_DIR"):
            self.assertIn(said, done.stderr)
        # What needs none does not mind.
        self.assertEqual(self.keel("data", "make", "addition", "--out", "a.jsonl", "--count", 3).returncode, 0)

    def test_another_pytorch_is_named_with_its_version(self):
        torch = self.fake_torch("2.10.0+cpu")
        done = self.doctor(VIRTUAL_ENV=f"{self.folder}/venv")
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertIn(f"{torch}: torch 2.10.0+cpu, and this Keel needs 2.11", done.stderr)
        done = self.doctor(KEEL_TORCH_DIR=str(torch))
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertIn(f"KEEL_TORCH_DIR is {torch}: torch 2.10.0+cpu", done.stderr)

    def test_a_pytorch_that_is_cut_off_is_named(self):
        torch = self.fake_torch("2.11.0")
        with open(SITE / "torch/lib/libtorch_cpu.so", "rb") as whole:
            (torch / "lib" / "libtorch_cpu.so").write_bytes(whole.read(1 << 20))
        done = self.doctor(KEEL_TORCH_DIR=str(torch))
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertRegex(done.stderr, rf"{torch}/lib/libtorch_cpu.so is cut off: it has 1048576 bytes")

    def test_a_prefix_that_was_half_copied_is_named(self):
        torch = {"KEEL_TORCH_DIR": str(SITE / "torch")}
        prefix = self.copy()
        module = prefix / "lib/keel/libkeel_torch.so"
        whole = module.read_bytes()
        module.write_bytes(whole[:200_000])
        done = self.doctor(prefix=prefix, **torch)
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertIn("libkeel_torch.so is cut off: it has 200000 bytes", done.stderr)
        module.unlink()
        done = self.doctor(prefix=prefix, **torch)
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertIn("the installation is not whole, install Keel again", done.stderr)
        shutil.rmtree(prefix / "share")
        done = self.keel("config", "example", prefix=prefix)
        self.assertEqual(done.returncode, 66, done)
        self.assertIn(f"no configurations in {prefix}/share/keel/configs", done.stderr)

    def test_configurations_come_with_it(self):
        listed = self.keel("config", "example").stdout
        for path in (ROOT / "configs").glob("*.yaml"):
            self.assertIn(f"  {path.stem} ", listed)
            self.assertEqual(self.keel("config", "example", path.stem).stdout, path.read_text())
        wrong = self.keel("config", "example", "qickstart")
        self.assertEqual(wrong.returncode, USAGE, wrong)
        self.assertIn("there are dpo, grpo", wrong.stderr)


class Deb(Packaging):
    def setUp(self):
        super().setUp()
        if shutil.which("dpkg-query") is None:
            self.skipTest("SKIPPED: no dpkg")

    def field(self, name):
        return sh("dpkg-deb", "-f", packages["deb"], name).stdout.strip()

    def test_it_depends_on_what_it_is_linked_with(self):
        sh("dpkg-deb", "-x", packages["deb"], self.folder)
        known = bare_root.installed()  # libspdlog1.10-fmt9 is a name that libspdlog1.10 provides
        depends = {known[name][0] for group in bare_root.parse_depends(self.field("Depends")) for name in group}
        for file in elf_files(self.folder):
            for name in dynamic(file, "NEEDED"):
                if re.match(r"libtorch|libc10|libkeel|libarrow|libparquet|ld-linux", name):
                    continue
                path = os.path.realpath(re.search(rf"{re.escape(name)} => (\S+)", sh("ldd", BUILD / file.name).stdout)[1])
                if "/site-packages/" in path:  # PyTorch's own libgomp in the build tree
                    continue
                # Debian's list may have it under /lib, which is a link to /usr/lib.
                owners = {line.split(":")[0] for line in sh("dpkg", "-S", f"*/{os.path.basename(path)}").stdout.splitlines()}
                self.assertTrue(owners & depends, f"{file.name} needs {name}, of {owners}")
        self.assertFalse([name for name in depends if "torch" in name or "nvidia" in name])

    def test_lintian_finds_no_error(self):
        if shutil.which("lintian") is None:
            self.skipTest("SKIPPED: lintian is not installed")
        # Whoever packs gives an address (DEBEMAIL); a test has none.
        own = "bogus-mail-host,bogus-mail-host-in-debian-changelog"
        done = sh("lintian", "--allow-root", "--fail-on", "error", "--suppress-tags", own, packages["deb"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_in_a_root_with_its_dependencies_alone_it_runs(self):
        self.needs_namespaces()
        bare_root.make(self.folder, [*bare_root.parse_depends(self.field("Depends")), ["libdnnl2"]])
        self.assertFalse(list(self.folder.rglob("python3*")))
        self.assertEqual(sh("dpkg-deb", "-x", packages["deb"], self.folder).returncode, 0)
        (self.folder / "usr/lib/keel/torch").symlink_to("/opt/site-packages/torch")
        script = f"export PATH=/usr/bin\n{FIRST_MINUTE}"
        environment = {"TMPDIR": "/tmp", "HOME": "/tmp", "PATH": os.environ["PATH"]}
        self.assertOver(bare_root.run_hidden([], script, [(SITE, "/opt/site-packages")], self.folder, env=environment))


PYTHON_LOOP = """
import tempfile, torch, keel
weight = torch.full((3, 2), 2.0)
with tempfile.TemporaryDirectory() as folder:
    with keel.Checkpointer(folder) as checkpoints:
        checkpoints.save_async(1, {"weight": weight}).wait()
        weight.zero_()
        loaded = checkpoints.load({"weight": weight})
print(f"step {loaded.step}, weight {weight[2, 1].item()}")
"""


class Wheel(Packaging):
    def install(self, folder):
        """Into an environment of its own, in which Python finds PyTorch elsewhere by a .pth file."""
        venv = folder / "venv"
        sh(sys.executable, "-m", "venv", "--without-pip", venv)
        done = sh(sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--no-deps", "--no-index", packages["wheel"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        site = next(venv.glob("lib/python3*/site-packages"))
        (site / "elsewhere.pth").write_text(f"{SITE}\n")
        return venv

    def test_what_it_says_of_itself(self):
        venv = self.install(self.folder)
        info = next(venv.glob("lib/python3*/site-packages/keel-*.dist-info"))
        metadata = (info / "METADATA").read_text()
        pinned = dict(re.findall(r"(?m)^(\w+)==(\S+)$", (ROOT / "requirements.txt").read_text()))
        self.assertIn(f"Requires-Dist: torch=={pinned['torch']}\n", metadata)
        self.assertIn(f'Requires-Dist: pyarrow=={pinned["pyarrow"]} ; extra == "parquet"\n', metadata)
        self.assertTrue((venv / "share/man/man1/keel.1").exists())
        self.assertTrue((venv / "share/bash-completion/completions/keel").exists())
        # No Python of ours is in the process: the command has become the program.
        done = sh(venv / "bin/keel", "launch", "--", "sh", "-c", "readlink /proc/$PPID/exe", env={"PATH": "/usr/bin:/bin"})
        self.assertIn("keel_program/bin/keel", done.stdout, done)
        shutil.rmtree(next(venv.glob("lib/python3*/site-packages/keel_program")) / "bin")
        broken = sh(venv / "bin/keel", "--version")
        self.assertEqual(broken.returncode, 1, broken)
        self.assertIn("install the wheel again", broken.stderr)

    def test_in_a_root_without_any_of_its_libraries_it_runs(self):
        self.needs_namespaces()
        base = pathlib.Path(sys.base_prefix)
        python = [["python3"]] if base == pathlib.Path("/usr") else []
        root = self.folder / "root"
        # What a Python that imports PyTorch needs itself.
        of_python = [[name] for name in ("libffi8", "zlib1g", "libbz2-1.0", "liblzma5", "libssl3") if sh("dpkg", "-s", name).returncode == 0]
        bare_root.make(root, [["libc6"], ["libstdc++6"], ["libgomp1"], *of_python, *python])
        if not python:
            self.assertFalse([*root.rglob("libfmt*"), *root.rglob("libyaml-cpp*"), *root.rglob("libcurl*")])
        venv = self.install(self.folder)
        binds = [(SITE, SITE), (venv, venv), *([] if python else [(base, base)])]
        script = f"export PATH='{venv}/bin':/usr/bin:/bin\n{FIRST_MINUTE}"
        environment = {"TMPDIR": "/tmp", "HOME": "/tmp", "PATH": os.environ["PATH"]}
        self.assertOver(bare_root.run_hidden([], script, binds, root, env=environment))
        # So does the module for Python, if the build has it.
        if not (BUILD / "python" / "keel").exists():
            self.skipTest("the build has no Python module: the program alone was run")
        (venv / "loop.py").write_text(PYTHON_LOOP)
        done = bare_root.run_hidden([], f"'{venv}/bin/python' '{venv}/loop.py'", binds, root, env=environment)
        self.assertEqual((done.returncode, done.stdout), (0, "step 1, weight 2.0\n"), done.stderr)

    def test_without_pytorch_it_says_what_to_install(self):
        venv = self.install(self.folder)
        next(venv.glob("lib/python3*/site-packages/elsewhere.pth")).unlink()
        done = sh(venv / "bin/keel", "score", "--model", "none", "--input", "i", "--output", "o", env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        self.assertEqual(done.returncode, UNAVAILABLE, done)
        self.assertIn(f"{venv}/bin/python", done.stderr)
        self.assertIn("pip install torch==", done.stderr)


if __name__ == "__main__":
    unittest.main()
