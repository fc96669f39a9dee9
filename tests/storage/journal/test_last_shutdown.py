from __future__ import annotations

from pathlib import Path

import pytest

from edged.storage.journal import last_shutdown


def test_the_first_start_is_known(tmp_path: Path) -> None:
    assert last_shutdown.record_startup(tmp_path, "a").reason == "first_start"


def test_a_state_of_an_older_edged_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    assert last_shutdown.record_startup(tmp_path, "a").reason == "unknown"


@pytest.mark.parametrize(("now", "reason"), [("a", "crash"), ("b", "power_cut")])
def test_without_an_end_it_was_cut_off(tmp_path: Path, now: str, reason: str) -> None:
    last_shutdown.record_startup(tmp_path, "a")
    assert last_shutdown.record_startup(tmp_path, now).reason == reason


@pytest.mark.parametrize("now", ["a", "b"])
def test_an_orderly_end_is_one_whatever_the_machine_did_afterwards(tmp_path: Path, now: str) -> None:
    last_shutdown.record_startup(tmp_path, "a")
    last_shutdown.record_shutdown(tmp_path, "a", "clean_stop")
    assert last_shutdown.record_startup(tmp_path, now).reason == "clean_stop"
    assert last_shutdown.record_startup(tmp_path, now).reason == "crash", "said once only"


def test_a_damaged_database_is_named_to_the_next_start(tmp_path: Path) -> None:
    last_shutdown.record_startup(tmp_path, "a")
    last_shutdown.record_shutdown(tmp_path, "a", "damaged", "samples.db")
    assert last_shutdown.record_startup(tmp_path, "a") == last_shutdown.Boot("damaged", "samples.db")


def test_a_damaged_note_is_no_reason_not_to_start(tmp_path: Path) -> None:
    last_shutdown.record_startup(tmp_path, "a")
    (tmp_path / last_shutdown.FILE).write_bytes(b"{")
    assert last_shutdown.record_startup(tmp_path, "a").reason == "unknown"
    assert last_shutdown.record_startup(tmp_path, "a").reason == "crash"
