"""Which device a node of Flower's is: what it first said, for ever, as its key stays its node's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.errors import CorruptError
from edged.storage.files.atomic import make_directory, publish_file
from edged.storage.files.checksummed_json import read_sealed, seal

if TYPE_CHECKING:
    from pathlib import Path

FILE = "nodes.json"


class NodeNames:
    """Names of nodes, durable in `folder`.

    Raises
    ------
    CorruptError
        When the file is damaged.
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

    def node(self, name: str) -> int | None:
        """Find the node of a device."""
        return next((node for node, known in self._names.items() if known == name), None)
