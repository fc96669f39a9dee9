"""What the audit log says of a command: no samples, labels, keys of sensors, or texts of the sender."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from edged.domain.audit_chain import AuditedSender, AuditEntry
from edged.domain.commands.rules import ENVELOPE, Request

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
"""Fields of requests that an entry repeats, by command; of `config.set` it repeats all."""

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
