"""Pairing codes and sessions in their file: used once, expired, guessed, revoked, damaged."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.errors import RefusedError, StorageError
from edged.storage.web_access import (
    CODE_SECONDS,
    FILE,
    LETTERS,
    MOST_SESSIONS,
    MOST_WRONG,
    SESSION_SECONDS,
    Pairing,
    normalised,
)

NOW = 1_800_000_000.0
SCOPES = ("read",)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


@pytest.fixture
def shown(tmp_path: Path, clock: VirtualClock) -> Pairing:
    """The file as the command line has it."""
    return Pairing(tmp_path, clock)


@pytest.fixture
def daemon(tmp_path: Path, clock: VirtualClock) -> Pairing:
    """The same file in another process."""
    return Pairing(tmp_path, clock)


def wrong(code: str) -> str:
    """A code that differs in its last letter."""
    last = LETTERS[(LETTERS.index(code[-1]) + 1) % len(LETTERS)]
    return code[:-1] + last


def paired(shown: Pairing, daemon: Pairing, name: str = "") -> str:
    cookie = daemon.redeem(shown.new_code(SCOPES, name))
    assert cookie is not None
    return cookie


def test_a_code_opens_one_session(shown: Pairing, daemon: Pairing) -> None:
    code = shown.new_code(SCOPES, "kitchen")
    cookie = daemon.redeem(f" {code.lower().replace('-', ' ')} ")
    assert cookie is not None
    session = daemon.find(cookie)
    assert session is not None
    assert (session.number, session.name, session.scopes) == (1, "kitchen", SCOPES)
    assert daemon.redeem(code) is None
    assert [one.number for one in shown.sessions()] == [1]


def test_two_browsers_at_once_use_a_code_once(shown: Pairing, daemon: Pairing) -> None:
    code, cookies = shown.new_code(SCOPES), list[str | None]()
    start = threading.Barrier(8)

    def redeem() -> None:
        start.wait()
        cookies.append(daemon.redeem(code))

    threads = [threading.Thread(target=redeem) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cookie is not None for cookie in cookies) == 1
    assert len(shown.sessions()) == 1


def test_a_code_expires(shown: Pairing, daemon: Pairing, clock: VirtualClock) -> None:
    code = shown.new_code(SCOPES)
    clock.advance_to(NOW + CODE_SECONDS)
    assert daemon.redeem(code) is None


def test_guessing_voids_all_codes(
    shown: Pairing, daemon: Pairing, tmp_path: Path, clock: VirtualClock
) -> None:
    codes = [shown.new_code(SCOPES) for _ in range(2)]
    for _ in range(MOST_WRONG - 1):
        assert daemon.redeem(wrong(codes[0])) is None
    assert Pairing(tmp_path, clock).redeem(wrong(codes[0])) is None, "a restart does not begin to count anew"
    assert [daemon.redeem(code) for code in codes] == [None, None]
    assert daemon.redeem(shown.new_code(SCOPES)) is not None


def test_nothing_is_written_for_guesses_without_a_code(daemon: Pairing, tmp_path: Path) -> None:
    assert daemon.redeem("ABCDEFGH") is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_code_is_no_guess(shown: Pairing, daemon: Pairing) -> None:
    code = shown.new_code(SCOPES)
    for _ in range(MOST_WRONG + 1):
        assert daemon.redeem("a token that was mistyped") is None
    assert daemon.redeem(code) is not None
    assert [normalised(text) for text in ("", "K7QM4TX", "K7QM4TXR2", "K7QM4TX0", "K7QM-4T\ud800")] == [
        None
    ] * 5


def test_a_session_ends_when_it_is_revoked(shown: Pairing, daemon: Pairing) -> None:
    cookies = [paired(shown, daemon) for _ in range(3)]
    assert shown.forget(2) == 1
    assert [daemon.find(cookie) is not None for cookie in cookies] == [True, False, True]
    with pytest.raises(RefusedError, match="no session 2"):
        shown.forget(2)
    code = shown.new_code(SCOPES)
    assert shown.forget() == 2
    assert [daemon.find(cookie) for cookie in cookies] == [None] * 3
    assert daemon.redeem(code) is None
    assert daemon.find(paired(shown, daemon)) is not None


def test_a_browser_logs_itself_out(shown: Pairing, daemon: Pairing) -> None:
    first, second = paired(shown, daemon), paired(shown, daemon)
    daemon.log_out(first)
    daemon.log_out("unknown")
    assert [one.number for one in shown.sessions()] == [2]
    assert daemon.find(second) is not None


def test_a_session_survives_a_restart_and_ends_in_half_a_year(
    shown: Pairing, daemon: Pairing, tmp_path: Path, clock: VirtualClock
) -> None:
    cookie = paired(shown, daemon)
    assert Pairing(tmp_path, clock).find(cookie) is not None
    clock.advance_to(NOW + SESSION_SECONDS)
    assert Pairing(tmp_path, clock).find(cookie) is None
    assert shown.sessions() == []


def test_sessions_are_bounded(shown: Pairing, daemon: Pairing) -> None:
    cookies = [paired(shown, daemon) for _ in range(MOST_SESSIONS + 1)]
    assert [daemon.find(cookie) is not None for cookie in cookies] == [False] + [True] * MOST_SESSIONS


def test_the_file_is_private_and_has_neither_code_nor_cookie(
    shown: Pairing, daemon: Pairing, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        cookie = paired(shown, daemon)
        code = shown.new_code(SCOPES)
    finally:
        os.umask(before)
    text = (tmp_path / FILE).read_text()
    assert cookie not in text
    assert code.replace("-", "") not in text
    assert code not in text
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_code_before_the_first_start_makes_a_private_directory(tmp_path: Path, clock: VirtualClock) -> None:
    before = os.umask(0o022)
    try:
        Pairing(tmp_path / "state", clock).new_code(SCOPES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_damaged_file_opens_nothing(shown: Pairing, daemon: Pairing, tmp_path: Path) -> None:
    cookie = paired(shown, daemon)
    path = tmp_path / FILE
    values = json.loads(path.read_text())
    values["sessions"][0]["scopes"] = ["read", "control"]
    path.write_text(json.dumps(values))
    assert daemon.find(cookie) is None
    assert daemon.find(paired(shown, daemon)) is not None


def test_who_may_not_read_the_file_is_told_so(shown: Pairing, daemon: Pairing, tmp_path: Path) -> None:
    assert shown.sessions() == []
    paired(shown, daemon)
    assert len(shown.sessions()) == 1
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / FILE)  # as unreadable for root as for anybody else
    with pytest.raises(StorageError, match="reading failed"):
        shown.sessions()
    assert daemon.find("cookie") is None
