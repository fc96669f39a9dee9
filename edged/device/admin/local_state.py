"""What commands on a state directory share: its lock, its models, and its audit log."""

from __future__ import annotations

import os
from pathlib import Path

from edged.clock import SystemClock
from edged.config import Config
from edged.device.promotion.model_store import ModelStore
from edged.domain.audit_chain import AuditedSender, AuditEntry, Link, LoggedEntry
from edged.domain.commands.rules import State
from edged.domain.json_fields import JsonObject
from edged.engines.inference import InferenceReader
from edged.errors import ConfigError, CorruptError, RefusedError
from edged.storage.backup.restore import RESTORED
from edged.storage.files.atomic import DirectoryLock
from edged.storage.journal.audit_log import Head, read_audit
from edged.storage.models.registry import Registry


def lock_state(state: Path, command: str | None = None) -> DirectoryLock:
    """Lock a state directory; RefusedError while a daemon runs, or after a restore that was cut off."""
    pid = DirectoryLock.holder(state)
    if pid is not None:
        raise RefusedError(
            f"another edged is using this state directory (pid {pid})",
            where=str(state),
            remedy="stop it first" + (f", or ask it over MQTT: request/{command}" if command else ""),
        )
    if command is not None and (state / RESTORED).exists():
        raise RefusedError("a restore was cut off", where=str(state), remedy="`edged run` finishes it")
    return DirectoryLock(state)


def model_store(config: Config, registry: Registry) -> ModelStore:
    """The models of a state directory, for one who holds its lock."""
    return ModelStore(config, registry, model_reader(config), SystemClock())


def model_reader(config: Config) -> InferenceReader:
    """What loads models as `serving` says."""
    return InferenceReader(providers=config.serving.provider)


# ---- audit log ---------------------------------------------------------------------------------


def local_entry(
    command: str, request: JsonObject, state: State = "successful", result: JsonObject | None = None
) -> AuditEntry:
    """Return an entry about a command on the command line."""
    who, now = AuditedSender("command line", os.getuid()), SystemClock().now()
    return AuditEntry(now, "command", command, who=who, state=state, request=request, result=result)


def head_of(state: Path) -> Link | None:
    """Return number and hash of the last entry; None where there is no readable head."""
    try:
        head = Head.read(state)
    except CorruptError:
        return None
    return None if head is None else head.last


def entries_of(state: Path, anchor: str | None = None) -> tuple[list[LoggedEntry], str]:
    """Verify the audit log of a state directory; return its entries, oldest first, and `SEQ:HASH` of its end.

    `anchor` is such a `SEQ:HASH` that was published earlier, which the log must contain. Raises CorruptError
    with file and line where the log is not as edged wrote it; ConfigError for a malformed anchor.
    """
    entries, last = read_audit(state, running=DirectoryLock.holder(state) is not None)
    if anchor is not None:
        seq, _, digest = anchor.partition(":")
        if not seq.isdigit() or not digest:
            raise ConfigError(f"got {anchor!r}", where="--head", remedy="give it as SEQ:HASH, as in metrics")
        hashes = {entry.previous.seq: entry.previous.hash for entry in entries} | {last.seq: last.hash}
        if hashes.get(int(seq)) != digest:
            known = f"the log has entries {min(hashes)} to {max(hashes)}"
            raise CorruptError(f"entry {seq} with this hash is not in it ({known})", where=str(state))
    return entries, f"{last.seq}:{last.hash}"
