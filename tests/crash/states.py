"""Every state in which a power cut may leave a disk, by the rules of POSIX and nothing kinder.

What an fsync has confirmed is there. Of all else anything may be there or not, in any combination: each
write, each name, and of each write any of its 512-byte sectors. A file may have grown without its data
having come: zeros then. Of what was written before an fsync that failed nothing is certain ever after.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.operations import ROOT_INODE, DataOperation, Link, Mark, NameOperation, Sync, Unlink, Write

if TYPE_CHECKING:
    import random

    from tests.crash.operations import History, Operation

SECTOR = 512
Tree = dict[str, bytes | None]
"""Paths to contents; None for a directory."""


@dataclass(frozen=True)
class Fate:
    """What became of one operation that was not durable: lost, there, or torn.

    `sectors` are those of a torn write that are there; `grown` says that the file got its size all the same.
    """

    there: bool
    sectors: frozenset[int] | None = None
    grown: bool = False

    def __str__(self) -> str:
        if self.sectors is None:
            return "there" if self.there else "lost"
        return f"sectors {sorted(self.sectors)}{' grown' if self.grown else ''}"


LOST, THERE = Fate(there=False), Fate(there=True)
Fates = dict[int, Fate]


@dataclass(frozen=True)
class State:
    """A disk after the cut: where it was, what came of the rest, what had been promised."""

    cut: int
    fates: Fates
    tree: Tree
    promises: tuple[Mark, ...]

    def __str__(self) -> str:
        fates = ", ".join(f"{at} {fate}" for at, fate in self.fates.items())
        return f"cut after operation {self.cut}; {fates or 'all durable'}"

    def write(self, root: Path) -> None:
        """Make it real below `root`."""
        root.mkdir()
        for path, content in self.tree.items():
            if content is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(content)

    @property
    def fingerprint(self) -> bytes:
        """Equal for equal disks with equal promises."""
        digest = hashlib.sha256(str(len(self.promises)).encode())
        for path, content in self.tree.items():
            digest.update(f"\0{path}\0{None if content is None else len(content)}\0".encode())
            digest.update(content or b"")
        return digest.digest()


def states(history: History, cuts: Iterable[int], rng: random.Random, *, each: int) -> Iterator[State]:
    """Different states at the points `cuts` (operations done before); `each` bounds those of one point.

    The two ends (all lost, all there) are always among them.
    """
    seen: set[bytes] = set()
    for cut in cuts:
        operations = history.operations[:cut]
        promises = tuple(operation for operation in operations if isinstance(operation, Mark))
        for fates in itertools.islice(_fates(operations, _pending(operations), rng), each):
            state = State(cut, fates, _tree(history, operations, fates), promises)
            fingerprint = state.fingerprint
            if fingerprint not in seen:
                seen.add(fingerprint)
                yield state


def after_promises(history: History) -> list[int]:
    """The points right after somebody was told something: there most is at stake."""
    return [at + 1 for at, operation in enumerate(history.operations) if isinstance(operation, Mark)]


def final(history: History) -> Tree:
    """The tree when nothing is lost."""
    return _tree(history, history.operations, {})


def _pending(operations: list[Operation]) -> list[int]:
    """Operations that no fsync has made durable."""
    waiting: dict[int, list[int]] = {}
    doomed: list[int] = []
    for at, operation in enumerate(operations):
        if isinstance(operation, DataOperation):
            waiting.setdefault(operation.inode, []).append(at)
        elif isinstance(operation, NameOperation):
            waiting.setdefault(operation.directory, []).append(at)
        elif isinstance(operation, Sync):
            done = waiting.get(operation.inode, [])
            if not operation.failed:
                waiting.pop(operation.inode, None)
            elif done and isinstance(operations[done[0]], DataOperation):
                # The kernel takes these pages for clean from now on: no later fsync writes them.
                doomed += waiting.pop(operation.inode)
    return sorted([*doomed, *itertools.chain.from_iterable(waiting.values())])


def _fates(operations: list[Operation], pending: list[int], rng: random.Random) -> Iterator[Fates]:
    yield dict.fromkeys(pending, LOST)
    yield {}
    if 1 < len(pending) <= 3:
        for kept in itertools.product((LOST, THERE), repeat=len(pending)):
            yield _lost(dict(zip(pending, kept, strict=True)))
    singles = [*((at, LOST) for at in pending), *((at, THERE) for at in pending)]
    while pending:
        if singles and rng.random() < 0.5:
            at, fate = singles.pop(rng.randrange(len(singles)))
            yield _lost(dict.fromkeys(pending, THERE if fate is LOST else LOST) | {at: fate})
        else:
            share = rng.choice((0.1, 0.5, 0.9))
            yield _lost({at: _any_fate(operations[at], share, rng) for at in pending})


def _lost(fates: Fates) -> Fates:
    return {at: fate for at, fate in fates.items() if fate is not THERE}


def _any_fate(operation: Operation, share: float, rng: random.Random) -> Fate:
    if isinstance(operation, Write) and len(operation.data) > 1 and rng.random() < 0.4:
        first, last = operation.offset // SECTOR, (operation.offset + len(operation.data) - 1) // SECTOR
        kept = [sector for sector in range(first, last + 1) if rng.random() < share]
        return Fate(there=True, sectors=frozenset(kept), grown=rng.random() < 0.5)
    return THERE if rng.random() < share else LOST


# ---- from operations to a tree ---------------------------------------------------------------


def _tree(history: History, operations: list[Operation], fates: Fates) -> Tree:
    names: dict[int, dict[str, int]] = {inode: {} for inode in history.directories}
    contents: dict[int, bytearray] = {}
    for at, operation in enumerate(operations):
        fate = fates.get(at, THERE)
        if not fate.there:
            continue
        if isinstance(operation, NameOperation):
            _apply_name(names, operation)
        elif isinstance(operation, DataOperation):
            _apply_data(contents.setdefault(operation.inode, bytearray()), operation, fate)
    tree: Tree = {}
    _walk(ROOT_INODE, "", names, contents, tree)
    return tree


def _apply_name(names: dict[int, dict[str, int]], operation: NameOperation) -> None:
    if isinstance(operation, Link):
        names[operation.directory][operation.name] = operation.inode
    elif isinstance(operation, Unlink):
        if names[operation.directory].get(operation.name) == operation.inode:
            del names[operation.directory][operation.name]
    else:
        if names[operation.source].get(operation.old) == operation.inode:
            del names[operation.source][operation.old]
        names[operation.directory][operation.new] = operation.inode


def _apply_data(content: bytearray, operation: DataOperation, fate: Fate) -> None:
    if not isinstance(operation, Write):
        content[operation.size :] = bytes(max(0, operation.size - len(content)))
        return
    end = operation.offset + len(operation.data)
    if fate.sectors is None:
        content.extend(bytes(max(0, operation.offset - len(content))))
        content[operation.offset : end] = operation.data
        return
    if fate.grown:
        content.extend(bytes(max(0, end - len(content))))
    for sector in sorted(fate.sectors):
        start, stop = max(operation.offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)
        content.extend(bytes(max(0, start - len(content))))
        content[start:stop] = operation.data[start - operation.offset : stop - operation.offset]


def _walk(
    inode: int, prefix: str, names: dict[int, dict[str, int]], contents: dict[int, bytearray], tree: Tree
) -> None:
    for name, child in sorted(names[inode].items()):
        if child in names:
            tree[prefix + name] = None
            _walk(child, f"{prefix}{name}/", names, contents, tree)
        else:
            tree[prefix + name] = bytes(contents.get(child, b""))
