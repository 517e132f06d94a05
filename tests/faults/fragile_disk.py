"""A FUSE file system in memory whose power can be cut: what was not synced may then be there, torn, or gone."""

import errno
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""
DURABLE_WRITES = os.O_SYNC | os.O_DSYNC


@dataclass(eq=False)
class File:
    """What programs see of a file, what is durable of it, and the changes between the two."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: "list[Write | Cut]" = field(default_factory=list)

    def change(self, change: "Write | Cut", durable: bool = False) -> None:
        change.make(self.seen)
        if durable:
            change.make(self.durable)
        else:
            self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.make(self.durable)
        self.pending.clear()


@dataclass(frozen=True)
class Write:
    """Bytes for a place in a file."""

    offset: int
    data: bytes

    def make(self, content: bytearray) -> None:
        content.extend(bytes(max(self.offset - len(content), 0)))
        content[self.offset : self.offset + len(self.data)] = self.data

    def tear(self, content: bytearray, chance: random.Random) -> None:
        """Write some sectors of it only."""
        for start in range(0, len(self.data), SECTOR_BYTES):
            if chance.random() < 0.5:
                Write(self.offset + start, self.data[start : start + SECTOR_BYTES]).make(content)


@dataclass(frozen=True)
class Cut:
    """Another length for a file."""

    length: int

    def make(self, content: bytearray) -> None:
        content.extend(bytes(max(self.length - len(content), 0)))
        del content[self.length :]

    def tear(self, content: bytearray, chance: random.Random) -> None:
        """Be whole: a length is."""
        self.make(content)


Tree = dict[str, File | None]
"""Files by path; None is a directory."""


class FragileDisk:
    """The file system. Names are journalled in order, as common file systems do: a sync of anything keeps them all.

    The power fails at the operation of number `cut_at` that changes or syncs something; then the directory
    `afterwards` is made with what is left, and the process ends; at the latest it fails when this is unmounted.
    Without `cut_at` it does not, and the process tells how many operations there were.
    """

    use_ns = True

    def __init__(self, before: Path, afterwards: Path, cut_at: int | None, seed: int) -> None:
        self.operations = 0
        self._cut_at = cut_at
        self._afterwards = afterwards
        self._chance = random.Random(seed)
        self._tree: Tree = {"/": None}
        self._durable: Tree = {"/": None}
        self._journal: list[Callable[[Tree], object]] = []
        self._handles: dict[int, tuple[File, int]] = {}
        self._last_handle = 0
        for path in sorted(before.rglob("*")):
            name = f"/{path.relative_to(before)}"
            content = None if path.is_dir() else path.read_bytes()
            self._tree[name] = None if content is None else File(bytearray(content), bytearray(content))
        self._durable |= self._tree

    # What changes names

    def create(self, path, mode, flags=None):
        file = self._tree[path] = File()
        self._name(lambda tree: tree.__setitem__(path, file))
        return self._opened(file, flags or 0)

    def mkdir(self, path, mode):
        self._tree[path] = None
        self._name(lambda tree: tree.__setitem__(path, None))

    def unlink(self, path):
        del self._tree[path]
        self._name(lambda tree: tree.pop(path, None))

    rmdir = unlink

    def rename(self, old, new):
        self._tree[new] = self._tree.pop(old)
        self._name(lambda tree: tree.__setitem__(new, tree.pop(old)))

    def chmod(self, path, mode):
        return 0

    # What changes files

    def open(self, path, flags):
        return self._opened(self._file(path), flags)

    def write(self, path, data, offset, handle):
        self._count()
        file, flags = self._handles[handle]
        file.change(Write(offset, data), durable=bool(flags & DURABLE_WRITES))
        return len(data)

    def truncate(self, path, length, handle=None):
        self._count()
        file = self._file(path) if handle is None else self._handles[handle][0]
        file.change(Cut(length))

    def fsync(self, path, datasync, handle):
        self._count()
        self._keep_names()
        self._handles[handle][0].sync()

    def fsyncdir(self, path, datasync, handle):
        self._count()
        self._keep_names()

    def release(self, path, handle):
        del self._handles[handle]

    # What looks

    def getattr(self, path, handle=None):
        node = self._handles[handle][0] if handle in self._handles else self._tree.get(path, self)
        if node is self:
            raise FileNotFoundError(errno.ENOENT, path)
        if node is None:
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(node.seen), "st_blocks": 1}

    def readdir(self, path, handle):
        inside = [name for name in self._tree if name != "/" and os.path.dirname(name) == path]
        return [".", "..", *map(os.path.basename, inside)]

    def read(self, path, size, offset, handle):
        return bytes(self._handles[handle][0].seen[offset : offset + size])

    def statfs(self, path):
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 30, "f_bfree": 1 << 30, "f_bavail": 1 << 30}

    # The power

    def _count(self) -> None:
        self.operations += 1
        if self.operations == self._cut_at:
            self._fail()

    def _fail(self) -> None:
        kept = self._journal[: self._chance.randint(0, len(self._journal))]
        for change in kept:
            change(self._durable)
        pending = torn = 0
        for file in self._durable.values():
            for change in file.pending if file is not None else ():
                pending += 1
                if self._chance.random() < 0.5:
                    if self._chance.random() < 0.3:
                        torn += 1
                        change.tear(file.durable, self._chance)
                    else:
                        change.make(file.durable)
        self._leave(self._durable)
        print(pending, torn, len(self._journal) - len(kept), flush=True)
        os._exit(0)

    def destroy(self, path):
        if self._cut_at is not None:
            self._fail()
        print(self.operations, flush=True)

    def _leave(self, tree: Tree) -> None:
        for name in sorted(tree):
            path = Path(f"{self._afterwards}{name}")
            content = tree[name]
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content.durable)

    def _name(self, change: Callable[[Tree], object]) -> None:
        self._count()
        self._journal.append(change)

    def _keep_names(self) -> None:
        for change in self._journal:
            change(self._durable)
        self._journal.clear()

    def _file(self, path: str) -> File:
        file = self._tree[path]
        assert file is not None
        return file

    def _opened(self, file: File, flags: int) -> int:
        self._last_handle += 1
        self._handles[self._last_handle] = file, flags
        return self._last_handle


def serve(before: Path, mounted: Path, afterwards: Path, cut_at: int | None, seed: int) -> None:
    """Mount the file system, and serve it until it is unmounted or the power fails."""
    import mfusepy

    mfusepy.FUSE(FragileDisk(before, afterwards, cut_at, seed), str(mounted), foreground=True, nothreads=True)
