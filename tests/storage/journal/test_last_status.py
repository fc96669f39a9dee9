from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from edged.domain.training.message import Message
from edged.errors import StorageError
from edged.storage.journal.last_status import FILE, read_status, write_status

WRITER = """
import sys
from pathlib import Path
from tests.storage.journal.test_last_status import Told, write_status
print("begins", flush=True)
n = 0
while True:
    n += 1
    write_status(Path(sys.argv[1]), Told(n, chr(97 + n % 26) * (n % 9000)), 1.0)
"""


@dataclass(frozen=True)
class Told(Message):
    n: int = 0
    text: str | None = None
    told_at: float | None = None


@dataclass(frozen=True)
class Other(Message):
    text: str | None = None
    more: int = 7


@dataclass(frozen=True)
class Changed(Message):
    n: str = "none"


def test_the_last_status_is_read_however_long_the_one_before_was(tmp_path: Path) -> None:
    assert read_status(tmp_path, Told) == Told()
    for text in ("x" * 5000, None, "ö\n"):
        write_status(tmp_path, Told(1, text), 2.5)
        assert read_status(tmp_path, Told) == Told(1, text, 2.5)


def test_a_status_of_another_version_says_what_it_can(tmp_path: Path) -> None:
    write_status(tmp_path, Told(3, "x"), 2.5)
    assert read_status(tmp_path, Other) == Other(text="x"), "unknown and missing fields"
    assert read_status(tmp_path, Changed) == Changed(), "a field of another type"


def test_no_bit_of_it_changes_unnoticed(tmp_path: Path) -> None:
    write_status(tmp_path, Told(3), 2.5)
    whole = (tmp_path / FILE).read_bytes()
    for cut in range(len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:cut])
        assert read_status(tmp_path, Told) == Told()
    for bit in range(8 * (len(whole) - 1)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(changed)
        assert read_status(tmp_path, Told) == Told()
    (tmp_path / FILE).write_bytes(bytes(4096))
    assert read_status(tmp_path, Told) == Told(), "what some file systems leave after a power cut"


def test_a_reader_meets_a_whole_status_while_it_is_written(tmp_path: Path) -> None:
    """Those that it met half-written, and read again, do not count."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            last, whole = 0, 0
            while last < 2000:
                told = read_status(tmp_path, Told)
                if told.n:
                    assert told.n >= last
                    assert told.text == chr(97 + told.n % 26) * (told.n % 9000)
                    last, whole = told.n, whole + 1
        finally:
            writer.kill()
    assert whole > 10


def test_what_the_disk_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(StorageError, match="writing the status"):
        write_status(tmp_path, Told(), 2.5)
