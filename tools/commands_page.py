#!/usr/bin/env python3
"""Writes docs/commands.md: what each command's --help says. tools/commands_page.py build/release/keel > docs/commands.md; the test
docs_commands compares."""

import re
import subprocess
import sys


def help_of(keel, path):
    return subprocess.run([keel, *path, "--help"], capture_output=True, text=True, check=True).stdout


def commands(keel):
    """{("ckpt", "ls"): its help}, in the order in which `keel --help` lists them, each before those below it."""
    found, open_ = {}, [()]
    while open_:
        path = open_.pop(0)
        found[path] = help_of(keel, path)
        listed = found[path].split("Subcommands:\n")
        names = re.findall(r"^  (\w[\w-]*)", listed[1].split("\n\n")[0], re.MULTILINE) if len(listed) > 1 else []
        # A benchmark's help is its driver's, which a build tree alone has.
        open_ = [(*path, name) for name in names if path != ("bench",)] + open_
    return found


def page(keel):
    parts = ["# Commands\n\nWhat `--help` says, of every command. Made by `tools/commands_page.py`.\n"]
    for path, text in commands(keel).items():
        summary, _, rest = text.strip().partition("\n")
        rest = re.sub(r"\n  -h,--help +Print this help message and exit", "", rest)
        rest = re.sub(r"\n\nOptions:(?=\n\n|$)", "", rest)
        parts.append(f"{'##' if len(path) < 2 else '###'} {' '.join(('keel', *path))}\n\n{summary}\n\n```text\n{rest.strip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
