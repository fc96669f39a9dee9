from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from edged.domain.training.message import Message
from edged.errors import StorageError
from edged.storage.journal import last_run
from edged.storage.journal.last_run import STATUS, read_status, write_status

WRITER = """
import sys
from pathlib import Path
from tests.storage.journal.test_last_run import Told, write_status
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
    whole = (tmp_path / STATUS).read_bytes()
    for cut in range(len(whole) - 1):
        (tmp_path / STATUS).write_bytes(whole[:cut])
        assert read_status(tmp_path, Told) == Told()
    for bit in range(8 * (len(whole) - 1)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / STATUS).write_bytes(changed)
        assert read_status(tmp_path, Told) == Told()
    (tmp_path / STATUS).write_bytes(bytes(4096))
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
    (tmp_path / STATUS).mkdir()
    with pytest.raises(StorageError, match="writing the status"):
        write_status(tmp_path, Told(), 2.5)


# ---- how the last daemon ended ---------------------------------------------------------------


def test_the_first_start_is_known(tmp_path: Path) -> None:
    assert last_run.record_startup(tmp_path, "a").reason == "first_start"


def test_a_state_without_the_file_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    assert last_run.record_startup(tmp_path, "a").reason == "unknown"


@pytest.mark.parametrize(("now", "reason"), [("a", "crash"), ("b", "power_cut")])
def test_without_an_end_it_was_cut_off(tmp_path: Path, now: str, reason: str) -> None:
    last_run.record_startup(tmp_path, "a")
    assert last_run.record_startup(tmp_path, now).reason == reason


@pytest.mark.parametrize("now", ["a", "b"])
def test_an_orderly_end_is_one_whatever_the_machine_did_afterwards(tmp_path: Path, now: str) -> None:
    last_run.record_startup(tmp_path, "a")
    last_run.record(tmp_path, "a", "clean_stop")
    assert last_run.record_startup(tmp_path, now).reason == "clean_stop"
    assert last_run.record_startup(tmp_path, now).reason == "crash", "said once only"


def test_a_damaged_database_is_named_to_the_next_start(tmp_path: Path) -> None:
    last_run.record_startup(tmp_path, "a")
    last_run.record(tmp_path, "a", "damaged", "samples.db")
    assert last_run.record_startup(tmp_path, "a") == last_run.Boot("damaged", "samples.db")


def test_a_damaged_note_is_no_reason_not_to_start(tmp_path: Path) -> None:
    last_run.record_startup(tmp_path, "a")
    (tmp_path / last_run.BOOT).write_bytes(b"{")
    assert last_run.record_startup(tmp_path, "a").reason == "unknown"
    assert last_run.record_startup(tmp_path, "a").reason == "crash"
