"""Facts about the machine that a measurement is worth nothing without."""

import os
import pathlib
import platform
import subprocess


def _cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _features():
    wanted = ["avx2", "avx512f", "avx512_bf16", "amx_bf16"]
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = line.split()
            return [f for f in wanted if f in flags]
    return []


def _memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def facts():
    return {
        "cpu": _cpu(),
        "features": _features(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def settings(args, root):
    """What was asked for, without the place where the tree lies."""
    return {key: str(value).replace(f"{root}/", "") for key, value in vars(args).items()}


def steal_ticks():
    """Time another guest took from this machine so far, in clock ticks; and all ticks."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return fields[7], sum(fields[:8])


def commit(folder):
    """The commit that is measured, with a mark when files were changed."""
    done = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"
