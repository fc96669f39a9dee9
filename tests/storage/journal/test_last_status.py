from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edged.errors import StorageError
from edged.storage.journal.last_status import FILE, read_status, write_status

WRITER = """
import sys
from pathlib import Path
from edged.storage.journal.last_status import write_status
print("begins", flush=True)
n = 0
while True:
    n += 1
    write_status(Path(sys.argv[1]), {"n": n, "text": chr(97 + n % 26) * (n % 9000)})
"""


def test_the_last_status_is_read_however_long_the_one_before_was(tmp_path: Path) -> None:
    assert read_status(tmp_path) == {}
    for status in ({"problem": "x" * 5000}, {"problem": None}, {"problem": "ö\n"}):
        write_status(tmp_path, status)
        assert read_status(tmp_path) == status


def test_no_bit_of_it_changes_unnoticed(tmp_path: Path) -> None:
    write_status(tmp_path, {"boot": 3})
    whole = (tmp_path / FILE).read_bytes()
    for cut in range(len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:cut])
        assert read_status(tmp_path) == {}
    for bit in range(8 * (len(whole) - 1)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(changed)
        assert read_status(tmp_path) == {}
    (tmp_path / FILE).write_bytes(bytes(4096))
    assert read_status(tmp_path) == {}, "what some file systems leave after a power cut"


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
                told = read_status(tmp_path)
                if told:
                    n = int(str(told["n"]))
                    assert n >= last
                    assert told["text"] == chr(97 + n % 26) * (n % 9000)
                    last, whole = n, whole + 1
        finally:
            writer.kill()
    assert whole > 10


def test_what_the_disk_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(StorageError, match="writing the status"):
        write_status(tmp_path, {})
