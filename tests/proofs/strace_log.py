"""Reads what strace wrote of a program's calls on files, and plays it on a disk_model.Disk."""

import os
import re
import shutil
import subprocess

import disk_model

# Everything with which a program can change a file or a directory, or make it durable. What is here and not
# in Player is refused rather than passed over.
CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,"
    "fallocate,fsync,fdatasync,sync_file_range,sync,syncfs,rename,renameat,renameat2,mkdir,mkdirat,rmdir,unlink,unlinkat,"
    "link,linkat,symlink,symlinkat,copy_file_range,sendfile,splice,access,faccessat,faccessat2,io_uring_setup,mmap,chdir"
)
LINE = re.compile(r"^(\d+) +(.*)$")
UNFINISHED = re.compile(r"^(.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+|\?)")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


def available():
    """None, or why there can be no tracing here."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian package strace)"
    done = subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"strace cannot trace here: {done.stderr.strip()[-200:]}"


def command(log, *program):
    return ["strace", "-f", "-qq", "-xx", "-s", "16777216", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log), *map(str, program)]


def text_of(match):
    if match.group(2):
        raise ValueError("strace cut a string short")
    return bytes.fromhex(match.group(1).replace("\\x", ""))


def calls(path):
    """Yields (name, arguments, result) in the order in which the calls returned."""
    begun = {}
    with open(path, encoding="ascii", errors="replace") as lines:
        for line in lines:
            match = LINE.match(line.rstrip("\n"))
            if not match:
                continue
            pid, rest = match.groups()
            if unfinished := UNFINISHED.match(rest):
                begun[pid] = unfinished.group(1)
                continue
            if resumed := RESUMED.match(rest):
                rest = begun.pop(pid, "") + resumed.group(1)
            if call := CALL.match(rest):
                name, arguments, result = call.groups()
                yield name, arguments, -1 if result == "?" else int(result)


class Player:
    """Plays calls on a disk; what is outside `folder` does not count. One table of descriptors: threads."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        self.disk = disk_model.Disk()
        self.files = {}  # descriptor -> [node, offset, append, path]
        self.working_directory = os.getcwd()
        self.marks = []  # names below the folder that access() asked for

    def path(self, base, name):
        """The path below the folder, or None when it is elsewhere."""
        name = os.fsdecode(name)
        if not name.startswith("/"):
            if base == "AT_FDCWD":
                name = os.path.join(self.working_directory, name)
            else:
                known = self.files.get(int(base))
                if known is None:
                    return None
                name = os.path.join(self.folder, known[3], name)
        name = os.path.normpath(name)
        if name == self.folder:
            return ""
        return name[len(self.folder) + 1 :] if name.startswith(self.folder + "/") else None

    def play(self, name, arguments, result):
        """The call's name and path when it changed the disk, or what is durable of it; else None."""
        if result < 0 and not name.startswith(("access", "faccessat")):
            return None
        play = getattr(self, f"_{name}", None)
        if play is None:
            raise NotImplementedError(f"{name}({arguments[:200]}): not in the model")
        strings = [text_of(match) for match in STRING.finditer(arguments)]
        plain = [part.strip() for part in STRING.sub("", arguments).split(",")]
        return play(plain, strings, result)

    # --- Descriptors ----------------------------------------------------------------------------------

    def _open_at(self, base, name, flags, result):
        path = self.path(base, name)
        self.files.pop(result, None)
        if path is None:
            return None
        node = self.disk.find(path)
        changed = False
        if node is None:
            if "O_CREAT" not in flags:
                return None
            node = disk_model.Inode()
            parent, last = self.disk.parent(path)
            parent.apply(None, last, node)
            changed = True
        if "O_TRUNC" in flags and len(node.now):
            node.truncate(0)
            changed = True
        self.files[result] = [node, 0, "O_APPEND" in flags, path]
        return ("create", path) if changed else None

    def _open(self, plain, strings, result):
        return self._open_at("AT_FDCWD", strings[0], plain[1], result)

    def _openat(self, plain, strings, result):
        return self._open_at(plain[0], strings[0], plain[2], result)

    def _creat(self, plain, strings, result):
        return self._open_at("AT_FDCWD", strings[0], "O_CREAT|O_TRUNC", result)

    def _close(self, plain, strings, result):
        self.files.pop(int(plain[0]), None)

    def _dup(self, plain, strings, result):
        self.files.pop(result, None)
        if int(plain[0]) in self.files:
            self.files[result] = self.files[int(plain[0])]  # the offset is shared

    _dup2 = _dup3 = _dup

    def _fcntl(self, plain, strings, result):
        if plain[1].startswith("F_DUPFD"):
            self._dup(plain, strings, result)

    def _lseek(self, plain, strings, result):
        if int(plain[0]) in self.files:
            self.files[int(plain[0])][1] = result

    def _chdir(self, plain, strings, result):
        self.working_directory = os.path.join(self.working_directory, os.fsdecode(strings[0]))

    # --- Content --------------------------------------------------------------------------------------

    def _put(self, descriptor, offset, data):
        known = self.files.get(int(descriptor))
        if known is None:
            return None
        node, at, append, path = known
        begin = offset if offset is not None else len(node.now) if append else at
        node.write(begin, data)
        if offset is None:
            known[1] = begin + len(data)
        return "write", path

    def _write(self, plain, strings, result):
        return self._put(plain[0], None, strings[0][:result]) if strings else None

    def _pwrite64(self, plain, strings, result):
        return self._put(plain[0], int(plain[-1]), strings[0][:result]) if strings else None

    def _writev(self, plain, strings, result):
        return self._put(plain[0], None, b"".join(strings)[:result])

    def _pwritev(self, plain, strings, result):
        return self._put(plain[0], int(plain[-1]), b"".join(strings)[:result])

    def _ftruncate(self, plain, strings, result):
        if known := self.files.get(int(plain[0])):
            known[0].truncate(int(plain[1]))
            return "truncate", known[3]

    def _fallocate(self, plain, strings, result):
        known = self.files.get(int(plain[0]))
        if known and plain[1] == "0":
            size = int(plain[2]) + int(plain[3])
            if size > len(known[0].now):
                known[0].truncate(size)
            return "fallocate", known[3]

    def _mmap(self, plain, strings, result):
        if len(plain) > 4 and "PROT_WRITE" in plain[2] and "MAP_SHARED" in plain[3] and int(plain[4]) in self.files:
            raise NotImplementedError(f"a file of the folder is written through mmap: {self.files[int(plain[4])][3]}")

    # --- Durability and names -------------------------------------------------------------------------

    def _fsync(self, plain, strings, result):
        if known := self.files.get(int(plain[0])):
            known[0].sync()
            return "fsync", known[3]

    _fdatasync = _fsync

    def _renamed(self, old, new):
        if old is None or new is None:
            return None
        self.disk.rename(old, new)
        for known in self.files.values():
            if known[3] == old or known[3].startswith(old + "/"):
                known[3] = new + known[3][len(old) :]
        return "rename", f"{old} -> {new}"

    def _rename(self, plain, strings, result):
        return self._renamed(*(self.path("AT_FDCWD", s) for s in strings[:2]))

    def _renameat(self, plain, strings, result):
        return self._renamed(self.path(plain[0], strings[0]), self.path(plain[2], strings[1]))

    _renameat2 = _renameat

    def _made(self, path):
        if path is not None:
            parent, name = self.disk.parent(path) if path else (None, None)
            if parent is None:
                return None
            parent.apply(None, name, disk_model.Directory())
            return "mkdir", path

    def _mkdir(self, plain, strings, result):
        return self._made(self.path("AT_FDCWD", strings[0]))

    def _mkdirat(self, plain, strings, result):
        return self._made(self.path(plain[0], strings[0]))

    def _removed(self, path):
        if path is not None:
            parent, name = self.disk.parent(path)
            parent.apply(name, None, None)
            return "remove", path

    def _unlink(self, plain, strings, result):
        return self._removed(self.path("AT_FDCWD", strings[0]))

    _rmdir = _unlink

    def _unlinkat(self, plain, strings, result):
        return self._removed(self.path(plain[0], strings[0]))

    def _access(self, plain, strings, result):
        path = self.path("AT_FDCWD", strings[0])
        if path is not None:
            self.marks.append(path)
            return "mark", path

    def _faccessat(self, plain, strings, result):
        path = self.path(plain[0], strings[0])
        if path is not None:
            self.marks.append(path)
            return "mark", path

    _faccessat2 = _faccessat

    def _elsewhere(self, plain, strings, result):
        """Calls of which a program may make some, but none on the folder's files."""
        for part in plain[:3]:
            if part.isdigit() and int(part) in self.files:
                raise NotImplementedError("a call that is not in the model touches a file of the folder")

    _sendfile = _splice = _copy_file_range = _sync_file_range = _elsewhere
