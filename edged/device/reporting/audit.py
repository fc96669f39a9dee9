"""The audit log of a device: entries that wait in `state.db`, and what changed between two starts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edged import __version__
from edged.config import Config, loader
from edged.domain.audit_chain import AuditEntry
from edged.errors import StorageError, TrainingError
from edged.logs import get_logger
from edged.storage.journal.audit_log import AuditLog
from edged.storage.journal.journal import Journal

CONFIGURED = "configured"  # name of the stored value

log = get_logger("edged.audit")


class AuditTrail:
    """Moves entries from the journal to the audit log in the directory `state`."""

    def __init__(self, journal: Journal, state: Path) -> None:
        self._journal, self._log = journal, AuditLog(state)

    def record_configuration(self, config: Config, now: float) -> None:
        """Record version, configuration and trusted keys at `now` (Unix seconds) if they have changed."""
        text = config.model_dump_json(exclude_unset=True).encode()
        after: dict[str, Any] = {
            "edged": __version__,
            "configuration": hashlib.sha256(text).hexdigest(),
            "settings": loader.read_overlay(config.storage.dir / loader.OVERLAY),
            "command_keys": _fingerprints(config.commands.keys),
            "model_keys": _fingerprints(config.model.keys),
        }
        before: Mapping[str, Any] = self._journal.get_value(CONFIGURED) or {}
        if before == after:
            return
        changed = [name for name in after if before.get(name) != after[name]]
        entry = AuditEntry(
            now,
            "configuration",
            before={name: before.get(name) for name in changed},
            after={name: after[name] for name in changed},
        )
        self._journal.record_audit(entry, **{CONFIGURED: after})

    def drain(self) -> None:
        """Append what waits; on a disk that refuses, or where another version wrote it, it waits on."""
        if not self._journal.audit_waits:
            return
        try:
            self._log.drain(self._journal)
        except (StorageError, TrainingError) as problem:
            log.warning("audit_not_kept", problem=problem.line(), action="retrying")


def _fingerprints(keys: Sequence[Path]) -> dict[str, str | None]:
    """Return the begin of the SHA-256 of each key file by its name; None if the file is missing."""
    return {
        key.name: hashlib.sha256(key.read_bytes()).hexdigest()[:16] if key.is_file() else None for key in keys
    }
