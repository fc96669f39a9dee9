"""What systemd's journal is told: a socket of our own takes the journal's place."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog

from edged import logs
from edged.logs import configure, get_logger


class Journal:
    """Reads datagrams as journald does."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(5)

    def entry(self) -> dict[str, str]:
        data, found = self._socket.recv(1 << 20), {}
        while data:
            line, _, data = data.partition(b"\n")
            name, equals, value = line.partition(b"=")
            if not equals:
                size = int.from_bytes(data[:8], "little")
                value, data = data[8 : 8 + size], data[8 + size + 1 :]
            found[name.decode()] = value.decode()
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    place = tmp_path / "journal"
    monkeypatch.setattr(logs, "SOCKET", str(place))
    served = Journal(place)
    yield served
    served.close()
    structlog.reset_defaults()


@pytest.fixture
def stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A stream that systemd has connected with the journal."""
    with (tmp_path / "stderr").open("w+") as stream:
        there = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        yield stream


def written(stream: TextIO) -> list[dict[str, Any]]:
    stream.seek(0)
    return [json.loads(line) for line in stream.read().splitlines()]


def test_the_values_of_an_event_are_fields_beside_its_line(journal: Journal, stderr: TextIO) -> None:
    configure("info", stderr)
    get_logger("edged.device").warning("model_promoted", version=7, gain=0.5, why=["a"], old=None)
    entry = journal.entry()
    line = json.loads(entry.pop("MESSAGE"))
    assert (line["event"], line["version"], line["level"]) == ("model_promoted", 7, "warning")
    assert entry == {
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "edged",
        "EDGED_EVENT": "model_promoted",
        "EDGED_LOGGER": "edged.device",
        "EDGED_VERSION": "7",
        "EDGED_GAIN": "0.5",
        "EDGED_WHY": '["a"]',
    }
    assert written(stderr) == []


def test_a_traceback_is_one_field_of_many_lines(journal: Journal, stderr: TextIO) -> None:
    configure("info", stderr)
    try:
        int("no")
    except ValueError:
        get_logger("a").exception("failed")
    entry = journal.entry()
    assert entry["PRIORITY"] == "3"
    assert entry["EDGED_EXCEPTION"].splitlines()[-1].startswith("ValueError: invalid literal")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels_are_the_journals_priorities(journal: Journal, stderr: TextIO, level: str) -> None:
    configure("debug", stderr)
    getattr(get_logger("a"), level)("b")
    assert journal.entry()["PRIORITY"] == {"debug": "7", "info": "6", "warning": "4", "error": "3"}[level]


def test_names_become_names_that_the_journal_takes() -> None:
    assert "EDGED_P99_US_NEW_" in logs.fields({"event": "a", "p99.us-new!": 1}, "")


def test_what_the_journal_does_not_take_is_written_as_text(journal: Journal, stderr: TextIO) -> None:
    configure("info", stderr)
    journal.close()
    get_logger("a").info("b", rows=3)
    assert written(stderr)[0]["rows"] == 3


def test_other_streams_get_lines(journal: Journal, stderr: TextIO, tmp_path: Path) -> None:
    with (tmp_path / "elsewhere").open("w+") as stream:
        configure("info", stream)
        get_logger("a").info("b")
        assert written(stream)[0]["event"] == "b"
