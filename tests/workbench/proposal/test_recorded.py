"""Messages in files: tables, JSON lines, and what mosquitto_sub prints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from edged.errors import ConfigError
from edged.workbench.proposal.recorded import messages


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "press.csv"
    path.write_text("temp,state,note\n41.5,ok,\n42,worn,nan\n", encoding="utf-8")
    first, second = messages(path)
    assert (first[0], json.loads(first[1])) == ("sensors/press", {"temp": 41.5, "state": "ok", "note": None})
    assert json.loads(second[1])["note"] is None
    with gzip.open(tmp_path / "press.csv.gz", "wb") as packed:
        packed.write(path.read_bytes())
    assert list(messages(tmp_path / "press.csv.gz")) == [first, second]


def test_json_lines_with_and_without_topics(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [
        '{"temp": 1}',
        '{"topic": "a/b", "payload": "ON"}',
        '{"topic": "a/c", "payload": {"t": 2}}',
        "{cut",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert list(messages(path)) == [
        ("sensors/log", b'{"temp": 1}\n'), ("a/b", b"ON"), ("a/c", b'{"t": 2}'), ("sensors/log", b"{cut"),
    ]  # fmt: skip


def test_what_mosquitto_sub_has_printed(tmp_path: Path) -> None:
    path = tmp_path / "capture.txt"
    path.write_text(
        'a/b 21.5\nzigbee2mqtt/living room {"t": 1}\n\na/empty \na/c two words\n', encoding="utf-8"
    )
    assert list(messages(path)) == [
        ("a/b", b"21.5"), ("zigbee2mqtt/living room", b'{"t": 1}'), ("a/empty", b""), ("a/c", b"two words"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "empty"), (b"\0\1\2", "not text"), (b"caf\xe9 1\n", "UTF-8"), (b"\n \n", "empty")],
)
def test_another_kind_of_file_is_one_line(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        list(messages(path))
    path.rename(tmp_path / "file.gz")
    with pytest.raises(ConfigError, match=r"file\.gz"):
        list(messages(tmp_path / "file.gz"))
