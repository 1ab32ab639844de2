"""Makes a wheel of an installed tree. tools/package.sh calls it.

In site-packages, keel_program/ is the tree: bin/keel, lib/keel/ with the modules and the system's libraries that they
need, share/. The command `keel` is a few lines of Python that become that program. The manual and the shells'
completion go to share/ of the environment. Beside it lies the package keel, where the tree has one: the checkpoints'
Python module.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import zipfile

# What any Linux of this age has itself, and must be its own: the C and C++ libraries, and what comes with PyTorch.
OWN = re.compile(r"lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|gomp)\.so|ld-linux|/site-packages/|linux-vdso")
# The newest symbols of libstdc++ in distributions with a glibc older than this one.
DISTRIBUTIONS = (((3, 4, 25), (2, 31)), ((3, 4, 28), (2, 34)), ((3, 4, 29), (2, 35)), ((3, 4, 30), (2, 38)), ((3, 4, 32), (2, 39)))
PROGRAM = '''"""The program of Keel: `keel`, and `python -m keel_program`."""

import os
import sys


def path():
    """Of the program."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "keel")


def main():
    """Becomes the program. The Python of this environment runs reward functions, and has the PyTorch that is taken."""
    os.environ.setdefault("KEEL_PYTHON", sys.executable)
    try:
        os.execv(path(), [path(), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"keel: {path()} cannot be started ({error.strerror}): install the wheel again")
'''
METADATA = """Metadata-Version: 2.1
Name: keel
Version: {version}
Summary: A trainer for language models
License: Apache-2.0
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Requires-Python: >=3.10
Requires-Dist: {torch}
Provides-Extra: parquet
Requires-Dist: {pyarrow} ; extra == "parquet"
Description-Content-Type: text/markdown

{readme}"""


def elf_files(folder):
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.append(path)
    return found


def system_libraries(files):
    """{soname: path} of all that the files need, directly or not, and that is not OWN."""
    found = {}
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    dnnl = re.search(r"(libdnnl\.so\.\d+) .*=> (/\S+)", listed)  # opened by its name, not linked
    if dnnl:
        found[dnnl[1]] = pathlib.Path(dnnl[2])
    for file in [*files, *found.values()]:
        done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE):
            if not OWN.search(path) and not OWN.match(name):
                found[name] = pathlib.Path(path)
    return found


def bundle(tree, libraries):
    """Copies them beside the modules, whose search path that is. Returns the Debian packages that they are of."""
    packages = {}
    for name, path in sorted(libraries.items()):
        target = tree / "lib" / "keel" / name
        shutil.copy(path.resolve(), target)
        target.chmod(0o644)
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
        for candidate in (path.resolve(), path, pathlib.Path("/usr" + str(path))):
            owner = subprocess.run(["dpkg", "-S", candidate], capture_output=True, text=True, check=False)
            if owner.returncode == 0:
                packages[owner.stdout.split(":")[0]] = name
                break
    return packages


def newest_symbol(files, kind):
    """The newest version of glibc's (or libstdc++'s) symbols that any file asks for."""
    versions = [(0, 0)]
    for file in files:
        text = subprocess.run(["readelf", "-V", file], capture_output=True, text=True, check=True).stdout
        needs = text[text.find("Version needs") :] if "Version needs" in text else ""
        versions += [tuple(map(int, found.split("."))) for found in re.findall(rf"Name: {kind}_(\d+\.[\d.]+)", needs)]
    return max(versions)


def tag(tree, package):
    """What Linux it runs on, as pip knows it: by the age of glibc, which stands for that of libstdc++, too."""
    files = elf_files(tree)
    standard = newest_symbol(files, "GLIBCXX")
    glibc = max([newest_symbol(files, "GLIBC"), *(age for symbols, age in DISTRIBUTIONS if standard > symbols)])
    platform = f"manylinux_{glibc[0]}_{glibc[1]}_{os.uname().machine}"
    for extension in package.glob("*.so") if package.is_dir() else ():
        python = re.search(r"\.cpython-(\d+)-", extension.name)
        if python:
            return f"cp{python[1]}-cp{python[1]}-{platform}"
    return f"py3-none-{platform}"


class Wheel:
    """A zip file with its record, the same bytes for the same content."""

    def __init__(self, path, level):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level)
        self.record = []
        self.when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]

    def add(self, name, content, mode=0o644):
        info = zipfile.ZipInfo(name, self.when)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, content, compresslevel=self.zip.compresslevel)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def add_tree(self, folder, prefix):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                mode = 0o755 if os.access(path, os.X_OK) and path.suffix != ".so" else 0o644
                self.add(f"{prefix}/{path.relative_to(folder)}", path.read_bytes(), mode)

    def close(self, info):
        self.record.append(f"{info}/RECORD,,")
        self.add(f"{info}/RECORD", ("\n".join(self.record) + "\n").encode())
        self.zip.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("--stage", "--version", "--requirements", "--readme", "--out"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--level", type=int, default=9, help="of the compression")
    arguments = parser.parse_args()
    tree = pathlib.Path(arguments.stage)
    package = tree.parent / "wheel-package"
    if (tree / "lib/keel/python/keel").is_dir():
        shutil.move(tree / "lib/keel/python/keel", package)
        (tree / "lib/keel/python").rmdir()

    # 1. What the program needs of this system comes along.
    libraries = system_libraries(elf_files(tree) + (elf_files(package) if package.is_dir() else []))
    packages = bundle(tree, libraries)
    pinned = dict(re.findall(r"^(\w+)==(\S+)$", pathlib.Path(arguments.requirements).read_text(), re.MULTILINE))

    # 2. The files.
    kind = tag(tree, package)
    path = pathlib.Path(arguments.out) / f"keel-{arguments.version}-{kind}.whl"
    wheel, info = Wheel(path, arguments.level), f"keel-{arguments.version}.dist-info"
    shared = tree / "share"
    for folder in ("man", "bash-completion", "zsh", "fish"):
        wheel.add_tree(shared / folder, f"keel-{arguments.version}.data/data/share/{folder}")
        shutil.rmtree(shared / folder)
    wheel.add("keel_program/__init__.py", PROGRAM.encode())
    wheel.add("keel_program/__main__.py", b"from keel_program import main\n\nmain()\n")
    wheel.add_tree(tree, "keel_program")
    if package.is_dir():
        wheel.add_tree(package, "keel")

    # 3. What it is.
    readme = pathlib.Path(arguments.readme).read_text()
    text = METADATA.format(version=arguments.version, torch=f"torch=={pinned['torch']}", pyarrow=f"pyarrow=={pinned['pyarrow']}", readme=readme)
    wheel.add(f"{info}/METADATA", text.encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: keel-package\nRoot-Is-Purelib: false\nTag: {kind}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nkeel = keel_program:main\n")
    wheel.add(f"{info}/licenses/LICENSE", (tree / "share/doc/keel/LICENSE").read_bytes())
    for name in sorted(packages):
        notice = pathlib.Path("/usr/share/doc") / name / "copyright"
        if notice.exists():
            wheel.add(f"{info}/licenses/{name}.copyright", notice.read_bytes())
    wheel.close(info)
    unpacked = sum(file.file_size for file in zipfile.ZipFile(path).infolist())
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {unpacked / 1e6:.0f} MB unpacked, with {len(libraries)} libraries of this system; "
          f"libstdc++ of GLIBCXX_{'.'.join(map(str, newest_symbol(elf_files(tree), 'GLIBCXX')))} or newer")


if __name__ == "__main__":
    sys.exit(main())
