"""Nodes of Flower: which device each is, and who is left out because it did not answer in time."""

from __future__ import annotations

from pathlib import Path

from edged.errors import CorruptError
from edged.storage.files.atomic import make_directory, publish_file
from edged.storage.files.checksummed_json import read_sealed, seal

FILE = "nodes.json"


class NodeNames:
    """Names of nodes, durable in `folder`: what a node first said, for ever, as its key stays its node's.

    CorruptError when the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        make_directory(folder)
        self._path = folder / FILE
        self._names: dict[int, str] = {}
        if self._path.exists():
            found = read_sealed(self._path).get("nodes")
            if not isinstance(found, dict):
                raise CorruptError("no nodes in it", where=str(self._path))
            self._names = {int(node): str(name) for node, name in found.items()}

    def name(self, node: int) -> str | None:
        """The device of a node; None as long as it has not said."""
        return self._names.get(node)

    def claimed(self, node: int, name: str) -> str:
        """The name under which a node's messages count that says it is `name`.

        Where another node has that name it is one that no device has, so that what it sends is refused.
        """
        if node not in self._names:
            if name in self._names.values():
                return f"node-{node}"
            self._names[node] = name
            publish_file(self._path, seal({"nodes": {str(n): d for n, d in self._names.items()}}))
        return self._names[node]


LONGEST = 16


class AbsenceBackoff:
    """Who is left out, and for how long: 1 round, then 2, 4, up to 16 while it stays silent.

    Flower takes a node that died for online for another minute, and waits for it as long as for any other.

    >>> absent = AbsenceBackoff()
    >>> absent.silent(7, 1)
    >>> [absent.left_out(7, number) for number in (2, 3)]
    [True, False]
    >>> absent.silent(7, 3)
    >>> [absent.left_out(7, number) for number in (4, 5, 6)]
    [True, True, False]
    >>> absent.answered(7)
    >>> absent.left_out(7, 4)
    False
    """

    def __init__(self) -> None:
        self._silent: dict[int, tuple[int, int]] = {}

    def silent(self, node: int, number: int) -> None:
        """Record that a node did not answer in round `number`."""
        times, last = self._silent.get(node, (0, 0))
        if number > last:
            self._silent[node] = times + 1, number

    def answered(self, node: int) -> None:
        """Record that a node has answered."""
        self._silent.pop(node, None)

    def left_out(self, node: int, number: int) -> bool:
        """Whether round `number` leaves a node out."""
        times, last = self._silent.get(node, (0, 0))
        return times > 0 and last < number <= last + min(LONGEST, 2 ** (times - 1))
