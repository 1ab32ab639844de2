"""Folders that are a machine of their own: a root with the files of a few Debian packages and of those that these depend on, and
nothing else, which a command is run in by chroot within a mount namespace. What is bound into it is seen by that command alone."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

ESSENTIAL = ("bash", "coreutils", "libc-bin", "sed", "grep")
LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bash-completion)/|/usr/share/zoneinfo")


def unshare():
    """How a mount namespace is entered here; None when it is not permitted."""
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            done = subprocess.run([*command, "mount", "--make-rprivate", "/"], capture_output=True, check=False)
        except FileNotFoundError:
            return None
        if done.returncode == 0:
            return command
    return None


def run_hidden(hidden, script, binds=(), root=None, **options):
    """Runs a bash script where each folder of `hidden` is empty, and each (what, where) of `binds` is bound; below `root`, if that is
    given, which becomes the root."""
    steps = ["set -e", "PATH=$PATH:/usr/sbin:/sbin", "mount --make-rprivate /"]
    base = str(root) if root else ""
    for what, where in binds:
        steps += [f"mkdir -p {shlex.quote(base + str(where))}", f"mount --bind {shlex.quote(str(what))} {shlex.quote(base + str(where))}"]
    if root:
        for folder in ("/proc", "/dev"):
            steps += [f"mkdir -p {base}{folder}", f"mount --rbind {folder} {base}{folder}"]
    for folder in hidden:
        steps.append(f"mount -t tmpfs none {shlex.quote(str(folder))}")
    enter = f"exec chroot {shlex.quote(base)} /bin/bash -c" if root else "cd / && exec /bin/bash -c"
    steps.append(f"{enter} {shlex.quote(script)}")
    return subprocess.run([*unshare(), "bash", "-c", "\n".join(steps)], capture_output=True, text=True, check=False, **options)


def installed():
    """{package or what it provides: (package, [names that it depends on, each with its alternatives])}."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f=${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"], capture_output=True, text=True, check=True
    )
    found = {}
    for line in done.stdout.splitlines():
        package, provides, depends = line.split("\t")
        entry = (package, parse_depends(depends))
        found[package] = entry
        for name in re.findall(r"[a-z0-9][a-z0-9.+-]+(?= ?\(|,|$)", provides):
            found.setdefault(name, entry)
    return found


def parse_depends(text):
    """[[alternative, ...], ...]."""
    return [[part.split()[0].split(":")[0] for part in group.split("|") if part.split()] for group in text.split(",") if group.strip()]


def closure(depends):
    """The packages of this machine that satisfy `depends`, and all that they need. KeyError: one that is not installed here."""
    known, found, open_ = installed(), set(), list(depends)
    while open_:
        group = open_.pop()
        names = [name for name in group if name in known]
        if not names:
            raise KeyError(f"none of {group} is installed here")
        package, more = known[names[0]]
        if package not in found:
            found.add(package)
            open_ += more
    return found


def make(root, depends):
    """Fills `root` with the files of the packages."""
    root = pathlib.Path(root)
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "tmp", "proc", "dev", "etc"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("bin", "lib", "lib64", "sbin"):
        (root / folder).symlink_to(f"usr/{folder}")
    for package in sorted(closure([*depends, *([name] for name in ESSENTIAL)])):
        listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=True).stdout.splitlines()
        for name in listed:
            if LEFT_OUT.match(name) or not os.path.lexists(name) or (os.path.isdir(name) and not os.path.islink(name)):
                continue
            real = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
            target = root / real[1:]
            if os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(real, target, follow_symlinks=False)
    # sh is Debian's diversion of dash.
    if not os.path.lexists(root / "usr/bin/sh"):
        (root / "usr/bin/sh").symlink_to("bash")
