"""The one form of archives, where zip needs other fields: files and places beyond 4 GiB."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edged.errors import CorruptError, RefusedError
from edged.storage.files.archive import ArchiveReader, ArchiveWriter

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
    found = {}
    with file.open("rb") as source, ArchiveReader(source, "archive", "", NAMES.__contains__, 3) as archive:
        for member in archive.members:
            found[member.filename] = member.file_size, sum(map(len, archive.blocks(member)))
    return found


@pytest.mark.full
def test_more_than_4_gib_in_little_memory(tmp_path: Path) -> None:
    file, large = tmp_path / "a.zip", len(BLOCK) * BLOCKS
    tracemalloc.start()
    try:
        with Sparse(file, "w+") as target, ArchiveWriter(target) as archive:
            archive.add("small", 5, [b"first"])
            archive.add("large", large, itertools.repeat(BLOCK, BLOCKS))
            archive.add("behind", 4, [b"last"])
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
    with file.open("r+b") as damaged:  # a bit of the sizes of zip64
        damaged.seek(-22 - 20 - 56 + 40, io.SEEK_END)
        byte = damaged.read(1)[0]
        damaged.seek(-1, io.SEEK_CUR)
        damaged.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptError):
        read(file)


@pytest.mark.parametrize("content", [b"", b"12", b"1234"])
def test_a_file_that_changes_while_it_is_copied(content: bytes) -> None:
    with ArchiveWriter(io.BytesIO()) as archive, pytest.raises(CorruptError, match="changed"):
        archive.add("small", 3, [content])


def test_a_directory_that_names_more_than_there_may_be_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as made:
        for number in range(5000):
            made.writestr(str(number), b"")
    with file.open("rb") as source, pytest.raises(RefusedError, match="no more than 3 files"):
        ArchiveReader(source, "archive", "", NAMES.__contains__, 3)
    content = bytearray(file.read_bytes())
    content[-42:-22] = b"PK\x06\x07" + bytes(16)  # the end of zip64, which a small file does not have
    file.write_bytes(content)
    with file.open("rb") as source, pytest.raises(CorruptError, match="its end"):
        ArchiveReader(source, "archive", "", NAMES.__contains__, 3)
