"""A disk that loses what was not synced: what a power cut may leave of a trace of system calls.

The rules are those of tests/checkpoint/support/sim_file_system.h. A file keeps its synced content plus any subset
of the 4 KiB pages written since, torn at sectors of 512 bytes; its size may have advanced without its
data. Of the operations on a directory since its last fsync any subset may have happened, but a rename is
all or nothing. A file's fsync says nothing of the name that it has.
"""

import hashlib
import random

PAGE, SECTOR = 4096, 512
ALL, NONE = 0xFF, 0
# Up to so many changes every subset of them is tried.
EXHAUSTIVE = 12


class Inode:
    def __init__(self):
        self.now = bytearray()
        self.synced = b""

    def write(self, offset, data):
        if len(self.now) < offset:
            self.now.extend(bytes(offset - len(self.now)))
        self.now[offset : offset + len(data)] = data

    def truncate(self, size):
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))

    def sync(self):
        self.synced = bytes(self.now)

    def dirty_pages(self):
        size = max(len(self.now), len(self.synced))
        now = bytes(self.now).ljust(size, b"\0")
        synced = self.synced.ljust(size, b"\0")
        return [p for p in range((size + PAGE - 1) // PAGE) if now[p * PAGE : (p + 1) * PAGE] != synced[p * PAGE : (p + 1) * PAGE]]

    def after(self, resized, pages):
        """The content when `resized` (a mask, as of a page) and `pages` {page: mask of sectors} survive."""
        content = bytearray(self.synced)
        if resized:
            del content[len(self.now) :]
            content.extend(bytes(len(self.now) - len(content)))
        now = bytes(self.now).ljust(len(content), b"\0")
        for page, mask in pages.items():
            for sector in range(PAGE // SECTOR):
                if mask >> sector & 1:
                    begin = page * PAGE + sector * SECTOR
                    end = min(begin + SECTOR, len(content))
                    if begin < end:
                        content[begin:end] = now[begin:end]
        return bytes(content)


class Directory:
    def __init__(self):
        self.now, self.synced, self.pending = {}, {}, []

    def apply(self, removed, added, node):
        """`removed` and `added` are names or None; both for a rename."""
        if removed is not None:
            self.now.pop(removed, None)
        if added is not None:
            self.now[added] = node
        self.pending.append((removed, added, node))

    def sync(self):
        self.synced, self.pending = dict(self.now), []


class Disk:
    def __init__(self):
        self.root = Directory()

    def find(self, path):
        """The node at a path below the root, "" for the root itself; None when there is none."""
        node = self.root
        for part in filter(None, path.split("/")):
            node = node.now.get(part) if isinstance(node, Directory) else None
            if node is None:
                return None
        return node

    def parent(self, path):
        above, _, name = path.rpartition("/")
        node = self.find(above)
        if not isinstance(node, Directory):
            raise KeyError(f"{above}: no such directory in the model")
        return node, name

    def rename(self, old, new):
        (source, old_name), (target, new_name) = self.parent(old), self.parent(new)
        node = source.now[old_name]
        if source is not target:
            raise NotImplementedError(f"a rename from one directory to another: {old} -> {new}")
        source.apply(old_name, new_name, node)

    def sync_all(self):
        for node in self.nodes():
            node.sync()

    def nodes(self):
        """All files and directories that any crash state can reach, each once."""
        seen, found, waiting = set(), [], [self.root]
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if isinstance(node, Directory):
                waiting += [child for _, child in sorted(node.synced.items())]
                waiting += [child for _, _, child in node.pending if child is not None]
        return found

    def unsynced(self, path):
        """What below `path`, and it itself, is not on the disk: messages."""
        found, waiting = [], [(path, self.find(path))]
        while waiting:
            name, node = waiting.pop()
            if isinstance(node, Directory):
                found += [f"{name}: {a or r} is not synced" for r, a, _ in node.pending]
                waiting += [(f"{name}/{child}", below) for child, below in node.now.items()]
            elif bytes(node.now) != node.synced:
                found.append(f"{name}: its content is not synced")
        return found

    def crash_states(self, samples, seed):
        """Yields (tree, torn): {path: bytes, or None for a directory} of each state that is tried."""
        nodes = self.nodes()
        items = []  # (node, "entry" or "size" or "page", number)
        for node in nodes:
            if isinstance(node, Directory):
                items += [(node, "entry", i) for i in range(len(node.pending))]
            else:
                if len(node.now) != len(node.synced):
                    items.append((node, "size", 0))
                items += [(node, "page", page) for page in node.dirty_pages()]
        n = len(items)
        if n <= EXHAUSTIVE:
            for subset in range(1 << n):
                yield self._after(items, [ALL if subset >> i & 1 else NONE for i in range(n)])
        else:
            yield self._after(items, [NONE] * n)
            yield self._after(items, [ALL] * n)
            for one in range(n):
                yield self._after(items, [ALL if i == one else NONE for i in range(n)])
                yield self._after(items, [NONE if i == one else ALL for i in range(n)])
        chance = random.Random(seed)
        for _ in range(samples if n else 0):
            masks = []
            for _, kind, _ in items:
                mask = chance.choice((ALL, NONE))
                masks.append(chance.randrange(256) if kind == "page" and chance.random() < 1 / 3 else mask)
            yield self._after(items, masks)

    def _after(self, items, masks):
        survives = {}
        for (node, kind, number), mask in zip(items, masks, strict=True):
            survives.setdefault(id(node), {})[kind, number] = mask
        tree = {}
        waiting = [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            mine = survives.get(id(node), {})
            if isinstance(node, Directory):
                entries = dict(node.synced)
                for i, (removed, added, child) in enumerate(node.pending):
                    if mine.get(("entry", i), NONE):
                        if removed is not None:
                            entries.pop(removed, None)
                        if added is not None:
                            entries[added] = child
                if path:
                    tree[path] = None
                waiting += [(f"{path}/{name}" if path else name, child) for name, child in entries.items()]
            else:
                pages = {number: mask for (kind, number), mask in mine.items() if kind == "page"}
                resized = mine.get(("size", 0), NONE)
                tree[path] = node.after(resized, pages)
        return tree


def digest(tree):
    value = hashlib.blake2b(digest_size=16)
    for path in sorted(tree):
        content = tree[path]
        value.update(path.encode() + (b"/" if content is None else b"\0" + len(content).to_bytes(8, "little") + content))
    return value.digest()
