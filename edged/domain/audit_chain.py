"""The audit log: its entries, and their chain, in which each line holds the SHA-256 of the line before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from edged.domain.commands.rules import ENVELOPE, Request
from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.training.message import Message, SparseMessage
from edged.domain.training.training_run import ModelData
from edged.errors import CorruptError

BEGINNING = "0" * 64  # `previous` of the first line
_OF_CHAMPIONS = ("before", "trigger", "run", "data", "verdict")  # fields that can be null


@dataclass(frozen=True)
class AuditedSender(SparseMessage):
    """Who sent a command, and how it came: `mqtt`, `http`, `local` or `command line`.

    `uid` is the user on the command line, `key` the name of the key that signed the command.
    """

    via: str
    uid: int | None = None
    key: str | None = None


@dataclass(frozen=True)
class AuditEntry(Message):
    """What was changed at `ts` (Unix seconds); `what` is the kind of entry, which says what fields it has.

    A `command` has a hash of its transaction as `id`, and of its request and result what the log may hold;
    `before` and `after` are the settings that it changed. In a `configuration` they are what differs from the
    start before, in a `champion` or `rollback` the versions of the models; there `trigger` is what began the
    `run`, and `source`, `data` and `verdict` are those of the model's record.
    """

    ts: float
    what: str
    command: str | None = None
    id: str | None = None
    who: AuditedSender | None = None
    state: str | None = None
    request: JsonObject | None = None
    result: JsonObject | None = None
    before: JsonObject | int | None = None
    after: JsonObject | int | None = None
    reason: str | None = None
    trigger: str | None = None
    source: str | None = None
    run: int | None = None
    data: ModelData | None = None
    verdict: Verdict | None = None

    def to_json(self) -> JsonObject:
        """Return the fields of this kind of entry; only some of them can be null."""
        nullable: tuple[str, ...] = ()
        if self.what == "command" and (self.who is None or self.who.uid is None):
            nullable = ("id",)
        elif self.what in ("champion", "rollback"):
            nullable = ("before", "trigger") if self.source is None else _OF_CHAMPIONS
        fields = super().to_json().items()
        return {name: value for name, value in fields if value is not None or name in nullable}


@dataclass(frozen=True)
class Link:
    """A place in the chain: the number of an entry, and the hexadecimal SHA-256 of its line."""

    seq: int = 0
    hash: str = BEGINNING

    def then(self, entry: AuditEntry) -> tuple[Link, bytes]:
        r"""Return the next link and its line, which holds the fields of `entry`.

        >>> Link().then(AuditEntry(1.0, "head_lost"))[1][:30]
        b'{"seq":1,"previous":"000000000'
        """
        fields = {"seq": self.seq + 1, "previous": self.hash, **entry.to_json()}
        line = json.dumps(fields, separators=(",", ":")).encode()
        return Link(self.seq + 1, hash_of(line)), line + b"\n"


@dataclass(frozen=True)
class LoggedEntry:
    """An entry in the log: its line, and the link of the entry before it."""

    previous: Link
    line: bytes

    @property
    def entry(self) -> AuditEntry:
        """The entry without what only other versions of edged know."""
        return AuditEntry.from_json(self.to_json())

    def to_json(self) -> JsonObject:
        """Return all fields of the line, also those that only another version of edged knows."""
        return cast("JsonObject", json.loads(self.line))


def hash_of(line: bytes) -> str:
    """Return the hexadecimal SHA-256 of a line without its end."""
    return hashlib.sha256(line).hexdigest()


def verify(data: bytes, before: Link, head: Link) -> list[LoggedEntry]:
    """Return the entries of a log that follow the link `before` and end with `head`.

    Raises CorruptError with the number of the first line that does not follow from the one before it, or if
    the log does not end at `head`: lines were changed, moved, removed or added.
    """
    entries: list[LoggedEntry] = []
    link = before
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        _check(line, number, link)
        entries.append(LoggedEntry(link, line))
        link = Link(link.seq + 1, hash_of(line))
        if link.seq == head.seq and link != head:
            raise CorruptError("the line was changed", where=f"line {number}")
    if lines[-1]:
        raise CorruptError("the line is incomplete", where=f"line {len(lines)}")
    if link != head:
        what = "lines were added" if link.seq > head.seq else "lines were removed"
        raise CorruptError(
            f"the log ends with entry {link.seq}, edged wrote {head.seq}: {what}", where=f"line {len(lines)}"
        )
    return entries


def _check(line: bytes, number: int, before: Link) -> None:
    """Raises CorruptError where a line does not follow from the one before it."""
    try:
        entry = json.loads(line)
        found = entry["seq"], entry["previous"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CorruptError("the line is not an entry", where=f"line {number}") from None
    if found[0] != before.seq + 1:
        raise CorruptError(f"expected entry {before.seq + 1}, found {found[0]!r:.40}", where=f"line {number}")
    if found[1] != before.hash:
        raise CorruptError("this line or the one before it was changed", where=f"line {number}")


# ---- entries about commands -----------------------------------------------------------------------

SIGNER = "signed_by"  # field of a request that the dispatcher sets

SHOWN: dict[str, tuple[str, ...]] = {
    "train": ("steps", "epochs", "learning_rate", "from", "dry_run"),
    "rollback": ("version",),
    "promote": ("version",),
    "pin": ("version",),
    "export": ("what", "version"),
    "pause": ("what",),
    "resume": ("what",),
    "wipe": ("what",),
    "label": ("from", "to", "hold"),
    "label.undo": ("number",),
    "labels.confirm": ("right",),
    "class.add": ("class",),
    "class.remove": ("class",),
    "class.merge": ("from", "to"),
    "logs.level": ("level",),
    "model.install": ("sha256",),
    "bundle.install": ("sha256",),
}
"""Fields of requests that an entry repeats, by command; of `config.set` it repeats all.

It has no samples, labels, keys of sensors, or texts of the sender.
"""

RESULTS = (
    "run", "from", "to", "version", "pinned", "paused", "generation", "samples", "labels", "models",
    "checkpoints", "files",
)  # fmt: skip
LABELS = (
    "number", "labelled", "held", "undone", "kept", "gone", "confirmed", "withdrawn", "before", "after",
)  # fmt: skip
"""Fields of answers that an entry repeats, and those of commands about labels."""
CHANGES = ("before", "after")
"""Fields that a handler returns for the entry alone: what a command that changes settings changed."""
ABOUT_LABELS = ("label", "label.undo", "labels.confirm")


def command_entry(
    name: str, request: Request, key: str | None, answer: Mapping[str, Any], via: str, ts: float
) -> AuditEntry:
    """Return the entry about a command that ended at `ts` (Unix seconds) with `answer`.

    `key` is its key in the journal, of which the entry has a hash. `via` says how it arrived.
    """
    signer, data = request.get(SIGNER), answer.get("data", {})
    names = tuple(request) if name == "config.set" else SHOWN.get(name, ())
    fields = LABELS if name in ABOUT_LABELS else RESULTS
    asked = {field: request[field] for field in names if field in request and field not in ENVELOPE}
    return AuditEntry(
        ts,
        "command",
        command=name,
        id=None if key is None else hashlib.sha256(key.encode()).hexdigest()[:16],
        who=AuditedSender(via, key=signer),
        state=answer["state"],
        request=asked,
        result={field: data[field] for field in fields if field in data},
    )
