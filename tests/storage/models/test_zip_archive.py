"""The one form of archives, where zip needs other fields: files and places beyond 4 GiB."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edged.errors import CorruptError
from edged.storage.models.zip_archive import ArchiveReader, ArchiveWriter

BLOCK = bytes(1 << 20)
BLOCKS = 4097
NAMES = ("small", "large", "behind")


class Sparse(io.FileIO):
    """A file in which blocks of zeros are holes."""

    def write(self, data: Any) -> int:
        if data is BLOCK:
            self.seek(len(BLOCK), io.SEEK_CUR)
            return len(BLOCK)
        return super().write(data)


def read(file: Path) -> dict[str, tuple[int, int]]:
    """Size as told and as found of each file."""
    with file.open("rb") as source:
        archive, found = ArchiveReader(source, "archive", "", lambda name: name in NAMES), {}
        while (member := archive.next()) is not None:
            found[member.name] = member.size, sum(map(len, archive.blocks(member)))
        archive.finish()
    return found


@pytest.mark.slow
def test_more_than_4_gib_in_little_memory(tmp_path: Path) -> None:
    file, large = tmp_path / "a.zip", len(BLOCK) * BLOCKS
    tracemalloc.start()
    try:
        with Sparse(file, "w+") as target:
            archive = ArchiveWriter(target)
            archive.add("small", 5, [b"first"])
            archive.add("large", large, itertools.repeat(BLOCK, BLOCKS))
            archive.add("behind", 4, [b"last"])
            archive.finish()
        assert read(file) == {"small": (5, 5), "large": (large, large), "behind": (4, 4)}
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    with zipfile.ZipFile(file) as whole:
        assert [(info.filename, info.file_size) for info in whole.infolist()] == [
            ("small", 5),
            ("large", large),
            ("behind", 4),
        ]
        assert whole.read("behind") == b"last"
    size = file.stat().st_size
    with file.open("r+b") as damaged:  # a bit of the sizes of zip64, and one of its end
        for place in (40 + 30 + len("large") + 4, size - 22 - 20 - 1, size - 22 - 30):
            damaged.seek(place)
            byte = damaged.read(1)[0]
            damaged.seek(place)
            damaged.write(bytes([byte ^ 1]))
            damaged.flush()
            with pytest.raises(CorruptError):
                read(file)
            damaged.seek(place)
            damaged.write(bytes([byte]))
            damaged.flush()


@pytest.mark.parametrize("content", [b"", b"12", b"1234"])
def test_a_file_that_changes_while_it_is_copied(content: bytes) -> None:
    with pytest.raises(CorruptError, match="changed"):
        ArchiveWriter(io.BytesIO()).add("small", 3, [content])
