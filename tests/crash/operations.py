"""What a program does to the files below one directory, recorded with strace, in order.

strace sees SQLite's writes as well as ours, and needs nothing of either. Memory-mapped files are not seen:
below the directory there is only SQLite's `-shm`, which a restart makes anew.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = (
    "open,openat,creat,close,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,"
    "fdatasync,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,"
    "symlink,symlinkat,copy_file_range,sendfile,mmap"
)
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
_LINE = re.compile(r"^(\d+)\s+(\w+)\((.*)\)\s+= (-?\w+)(.*)$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_NAMED = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>")
ROOT_INODE = 0
MARK = b"@"


@dataclass(frozen=True)
class Write:
    """`data` at `offset` of a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A file gets another size."""

    inode: int
    size: int


@dataclass(frozen=True)
class Link:
    """A new file or directory gets a name."""

    directory: int
    name: str
    inode: int


@dataclass(frozen=True)
class Unlink:
    """A name goes."""

    directory: int
    name: str
    inode: int


@dataclass(frozen=True)
class Move:
    """A name becomes another one, which may have been taken."""

    source: int
    old: str
    directory: int
    new: str
    inode: int


@dataclass(frozen=True)
class Sync:
    """Everything done to this file, or to the names in this directory, is durable; unless it failed."""

    inode: int
    failed: bool


@dataclass(frozen=True)
class Mark:
    """The program told somebody that something is done."""

    words: tuple[str, ...]


DataOperation = Write | Truncate
NameOperation = Link | Unlink | Move
Operation = DataOperation | NameOperation | Sync | Mark


@dataclass
class History:
    """All operations of a program, and which inodes are directories."""

    operations: list[Operation] = field(default_factory=list)
    directories: set[int] = field(default_factory=lambda: {ROOT_INODE})


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


class Parser:
    """Follows the lines of a trace; what it does not understand below the directory is an error."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._names: dict[int, dict[str, int]] = {ROOT_INODE: {}}
        self._positions: dict[str, int] = {}
        self._next = ROOT_INODE + 1
        self.history = History()

    def parse(self, lines: Iterable[str]) -> History:
        """All operations of the trace."""
        begun: dict[str, str] = {}
        for line in lines:
            if line.endswith("<unfinished ...>\n"):
                begun[line.split()[0]] = line.removesuffix("<unfinished ...>\n")
                continue
            if "<... " in line:
                rest = re.sub(r"^\d+\s+<\.\.\. \w+ resumed>", "", line)
                line = begun.pop(line.split()[0]) + rest  # noqa: PLW2901  the two halves are one line
            found = _LINE.match(line)
            if found is not None:
                self._call(found[2], found[3], found[4])
        return self.history

    def _call(self, name: str, arguments: str, result: str) -> None:
        if result == "?" or (result.startswith("-") and name not in ("fsync", "fdatasync")):
            return
        strings = [self._string(*found) for found in _STRING.findall(arguments)]
        files = [(number, _text(path).decode()) for number, path in _NAMED.findall(arguments)]
        if name == "write" and strings[0].startswith(MARK):
            words = strings[0][len(MARK) :].decode().split()
            self.history.operations.append(Mark(tuple(words)))
            return
        paths = [s.decode() for s in strings] if name not in ("write", "pwrite64") else []
        if not any(self._ours(path) for path in [*paths, *(path for _, path in files)]):
            return
        if any(path.endswith("-shm") for path in [*paths, *(path for _, path in files)]):
            return
        handler = getattr(self, f"_on_{name}", None)
        assert handler is not None, f"the trace has a call that is not understood: {name}({arguments[:200]})"
        handler(strings, files, arguments, result)

    @staticmethod
    def _string(escaped: str, cut: str) -> bytes:
        assert not cut, "strace cut a string off"
        return _text(escaped)

    def _ours(self, path: str) -> bool:
        return path.startswith(self._root + "/") or path == self._root

    # ---- names -----------------------------------------------------------------------------

    def _find(self, path: str) -> int | None:
        inode: int | None = ROOT_INODE
        for part in Path(path).relative_to(self._root).parts:
            inode = self._names.get(inode, {}).get(part) if inode is not None else None
        return inode

    def _place(self, path: str) -> tuple[int, str]:
        parent = self._find(str(Path(path).parent))
        assert parent is not None, path
        return parent, Path(path).name

    def _make(self, path: str, *, directory: bool) -> int:
        inode, self._next = self._next, self._next + 1
        parent, name = self._place(path)
        self._names[parent][name] = inode
        if directory:
            self._names[inode] = {}
            self.history.directories.add(inode)
        self.history.operations.append(Link(parent, name, inode))
        return inode

    def _drop(self, path: str) -> None:
        parent, name = self._place(path)
        self.history.operations.append(Unlink(parent, name, self._names[parent].pop(name)))

    # ---- calls -----------------------------------------------------------------------------

    def _on_openat(self, _s: list[bytes], _f: list[tuple[str, str]], arguments: str, result: str) -> None:
        path = next(_text(s).decode() for s, _ in _STRING.findall(arguments))
        self._positions[result] = 0
        if not self._ours(path):
            return
        inode = self._find(path)
        if inode is None:
            assert "O_CREAT" in arguments, path
            self._make(path, directory=False)
        elif "O_TRUNC" in arguments:
            self.history.operations.append(Truncate(inode, 0))
        assert "O_APPEND" not in arguments, path

    def _on_close(self, *_: object) -> None:
        """Closing makes nothing durable."""

    def _on_lseek(self, _s: list[bytes], files: list[tuple[str, str]], _a: str, result: str) -> None:
        self._positions[files[0][0]] = int(result)

    def _on_write(self, strings: list[bytes], files: list[tuple[str, str]], _a: str, result: str) -> None:
        number, path = files[0]
        position = self._positions[number]
        self._positions[number] = position + int(result)
        self._write(path, position, strings[0][: int(result)])

    def _on_pwrite64(
        self, strings: list[bytes], files: list[tuple[str, str]], args: str, result: str
    ) -> None:
        self._write(files[0][1], int(args.rsplit(",", 1)[1]), strings[0][: int(result)])

    def _write(self, path: str, offset: int, data: bytes) -> None:
        inode = self._find(path)
        if inode is not None:  # one that has no name any more is gone with the process
            self.history.operations.append(Write(inode, offset, data))

    def _on_ftruncate(self, _s: list[bytes], files: list[tuple[str, str]], arguments: str, _r: str) -> None:
        inode = self._find(files[0][1])
        if inode is not None:
            self.history.operations.append(Truncate(inode, int(arguments.rsplit(",", 1)[1])))

    def _on_fsync(self, _s: list[bytes], files: list[tuple[str, str]], _a: str, result: str) -> None:
        inode = self._find(files[0][1])
        if inode is not None:
            self.history.operations.append(Sync(inode, result != "0"))

    _on_fdatasync = _on_fsync

    def _on_rename(self, strings: list[bytes], _f: list[tuple[str, str]], _a: str, _r: str) -> None:
        old, new = (s.decode() for s in strings)
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        inode = self._names[source].pop(old_name)
        self._names[target][new_name] = inode
        self.history.operations.append(Move(source, old_name, target, new_name, inode))

    def _on_unlink(self, strings: list[bytes], _f: list[tuple[str, str]], _a: str, _r: str) -> None:
        self._drop(strings[0].decode())

    _on_rmdir = _on_unlink

    def _on_unlinkat(self, strings: list[bytes], files: list[tuple[str, str]], _a: str, _r: str) -> None:
        self._drop(f"{files[0][1]}/{strings[0].decode()}")

    def _on_mkdir(self, strings: list[bytes], _f: list[tuple[str, str]], _a: str, _r: str) -> None:
        self._make(strings[0].decode(), directory=True)

    def _on_mmap(self, _s: list[bytes], _f: list[tuple[str, str]], arguments: str, _r: str) -> None:
        assert "MAP_SHARED" not in arguments or "PROT_WRITE" not in arguments, (
            "a file is written through memory"
        )


def record(root: Path, *arguments: str, inject: str | None = None) -> History:
    """Run `python -m tests.crash.workloads ROOT ...` and return what it did below `root`, a new directory.

    `inject` is strace's fault injection, such as `fdatasync:error=EIO:when=3`.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("strace is not installed: run the tests with `make test`, which installs it")
    root.mkdir()
    trace = root.with_name(f"{root.name}.trace")
    faults = ["-e", f"inject={inject}"] if inject is not None else []
    done = subprocess.run(
        [strace, "-f", "-y", "-xx", "-s", "16777216", "-e", "signal=none", "-e", f"trace={CALLS}", *faults,
         "-o", str(trace), sys.executable, "-m", "tests.crash.workloads", str(root), *arguments],
        capture_output=True, check=False, timeout=100, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    with trace.open(encoding="ascii") as lines:
        return Parser(root).parse(lines)
