"""The chain of the audit log: whatever somebody changes in it is noticed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from edged.domain.audit_chain import AuditedSender, AuditEntry, Link, hash_of, verify
from edged.errors import CorruptError


def chain(count: int, before: Link = Link(), device: str = "a") -> tuple[list[bytes], Link]:  # noqa: B008  frozen
    """The lines of a log, and where it ends."""
    lines, link = [], before
    for number in range(count):
        link, line = link.then(AuditEntry(1.7e9 + number, "command", command=device, id=str(number % 3)))
        lines.append(line)
    return lines, link


def rechained(lines: list[bytes]) -> list[bytes]:
    """The same entries, with numbers and hashes made to fit again."""
    link, made = Link(), []
    for line in lines:
        link, fitting = link.then(AuditEntry.from_json(json.loads(line)))
        made.append(fitting)
    return made


def flip(lines: list[bytes], rng: random.Random) -> bytes:
    data = bytearray(b"".join(lines))
    for _ in range(rng.randint(1, 5)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def edit(lines: list[bytes], rng: random.Random) -> bytes:
    """One value, with all hashes after it made to fit in half of the cases."""
    changed, at = list(lines), rng.randrange(len(lines))
    changed[at] = json.dumps(json.loads(lines[at]) | {"id": "99"}, separators=(",", ":")).encode() + b"\n"
    return b"".join(rechained(changed) if rng.random() < 0.5 else changed)


def reorder(lines: list[bytes], rng: random.Random) -> bytes:
    one, other = rng.sample(range(len(lines)), 2)
    moved = list(lines)
    moved[one], moved[other] = moved[other], moved[one]
    return b"".join(rechained(moved) if rng.random() < 0.5 else moved)


def remove(lines: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(lines))
    left = lines[:at] + lines[at + rng.randint(1, 3) :]
    return b"".join(rechained(left) if rng.random() < 0.5 else left)


def truncate(lines: list[bytes], rng: random.Random) -> bytes:
    data = b"".join(lines)
    return data[: rng.randrange(len(data))]


def repeat(lines: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(lines))
    more = [*lines[:at], lines[at], *lines[at:]]
    return b"".join(rechained(more) if rng.random() < 0.5 else more)


def append(lines: list[bytes], rng: random.Random) -> bytes:
    """A line of its own, which follows from the last one in half of the cases."""
    last = Link(len(lines), hash_of(lines[-1][:-1])) if rng.random() < 0.5 else Link(len(lines))
    return b"".join(lines) + last.then(AuditEntry(rng.random(), "command"))[1]


def splice(lines: list[bytes], rng: random.Random) -> bytes:
    """The beginning of this log and the end of another one."""
    other, at = chain(len(lines), device="b")[0], rng.randrange(len(lines))
    return b"".join(lines[:at] + other[at:])


def replace(lines: list[bytes], rng: random.Random) -> bytes:
    return b"".join(chain(len(lines), device=f"c{rng.random()}")[0])


WAYS: list[Callable[[list[bytes], random.Random], bytes]] = [
    flip, edit, reorder, remove, truncate, repeat, append, splice, replace,
]  # fmt: skip


def test_none_of_ten_thousand_tampered_logs_is_accepted() -> None:
    rng = random.Random(1)
    logs = [chain(count) for count in (4, 11, 30)]
    tried = 0
    while tried < 10_000:
        lines, head = logs[tried % len(logs)]
        tampered = WAYS[tried % len(WAYS)](lines, rng)
        if tampered == b"".join(lines):
            continue  # two flips of one bit
        tried += 1
        with pytest.raises(CorruptError, match=r"^line \d+: "):
            verify(tampered, Link(), head)


@pytest.mark.parametrize("before", [Link(), Link(70, "ab" * 32)])
def test_a_whole_log_is_accepted_and_its_entries_are_given(before: Link) -> None:
    lines, head = chain(30, before)
    entries = verify(b"".join(lines), before, head)
    assert [entry.to_json()["seq"] for entry in entries] == list(range(before.seq + 1, before.seq + 31))
    assert head.seq == before.seq + 30
    assert verify(b"", before, before) == []


WHO = {"via": "command line", "uid": 1000}
ENTRIES = [
    {"ts": 1.5, "what": "command", "command": "pin", "id": None, "who": {"via": "mqtt", "key": "a.pub"},
     "state": "successful", "request": {"version": 1}, "result": {"pinned": 1}, "before": {"pinned": []},
     "after": {"pinned": [1]}},
    {"ts": 1.5, "what": "command", "command": "train", "id": "ab12", "who": {"via": "http"},
     "state": "failed", "request": {}, "result": {}},
    {"ts": 1.5, "what": "command", "command": "restore", "who": WHO, "state": "successful", "request": {},
     "result": {"champion": None, "signed": False}},
    {"ts": 1.5, "what": "command", "command": "models pin", "who": WHO, "state": "successful",
     "request": {"version": 2}, "before": {"pinned": []}, "after": {"pinned": [2]}},
    {"ts": 1.5, "what": "configuration", "before": {"edged": None}, "after": {"edged": "1.0"}},
    {"ts": 1.5, "what": "champion", "before": None, "after": 1, "reason": "bundle", "trigger": None,
     "source": "bundle", "run": None, "data": {"bundle": "ab"}, "verdict": None},
    {"ts": 1.5, "what": "rollback", "before": 2, "after": 1, "reason": "worse", "trigger": "labels",
     "source": "training", "run": 3, "data": {}, "verdict": {
         "accepted": True, "reasons": ["better"], "numbers": {"gain": 0.5}, "forgets": False,
     }},
    {"ts": 1.5, "what": "champion", "before": None, "after": 1, "reason": "found", "trigger": None},
    {"ts": 1.5, "what": "head_lost"},
]  # fmt: skip


@pytest.mark.parametrize("fields", ENTRIES)
def test_an_entry_of_each_kind_is_read_and_written_to_the_byte(fields: dict[str, Any]) -> None:
    entry = AuditEntry.from_json(fields)
    link, line = Link().then(entry)
    whole = {"seq": 1, "previous": "0" * 64, **fields}
    assert line == json.dumps(whole, separators=(",", ":")).encode() + b"\n"
    assert verify(line, Link(), link)[0].entry == entry


def test_what_another_version_says_in_an_entry_is_verified_and_not_lost() -> None:
    who = {"via": "mqtt", "at": 7}
    fields = {"seq": 1, "previous": "0" * 64, "who": who, "n": None, "ts": 1, "what": "x"}
    line = json.dumps(fields, separators=(",", ":")).encode()
    (logged,) = verify(line + b"\n", Link(), Link(1, hash_of(line)))
    assert json.dumps(logged.to_json()) == json.dumps(fields)
    assert logged.entry == AuditEntry(1.0, "x", who=AuditedSender("mqtt"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-2], "line 4: the log ends with entry 3, edged wrote 5: lines were removed"),
        (
            lambda lines: [*lines, Link(5).then(AuditEntry(0.0, "command"))[1]],
            "line 6: this line or the one before it was changed",
        ),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3: expected entry 3, found 4"),
        (
            lambda lines: [*lines[:-1], lines[-1].replace(b"command", b"COMMAND")],
            "line 5: the line was changed",
        ),
        (lambda lines: [*lines, b'{"seq":6,"previous'], "line 6: the line is incomplete"),
        (lambda lines: [lines[0], b"[" * 9000 + b"\n"], "line 2: the line is not an entry"),
    ],
)
def test_the_line_where_it_breaks_is_named(change: Callable[[list[bytes]], list[bytes]], said: str) -> None:
    lines, head = chain(5)
    with pytest.raises(CorruptError) as caught:
        verify(b"".join(change(lines)), Link(), head)
    assert caught.value.line() == said
