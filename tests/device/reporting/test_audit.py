"""Entries that wait for the audit log, when another version of edged has written them."""

from __future__ import annotations

from pathlib import Path

from edged.device.reporting.audit import AuditTrail
from edged.domain.audit_chain import AuditEntry
from edged.storage.journal.audit_log import read_audit
from edged.storage.models.registry import Registry


def test_an_entry_that_this_version_cannot_read_waits_and_stops_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        trail = AuditTrail(registry, tmp_path)
        registry.record_audit(AuditEntry(1.0, "command", command="pin"))
        registry.set_value("audit.000000000000.of_another", {"ts": "yesterday", "what": "command"})
        trail.drain()
        assert read_audit(tmp_path, running=True)[0] == []
        registry.set_value("audit.000000000000.of_another", {"ts": 0.5, "what": "head_lost"})
        registry.record_audit(AuditEntry(2.0, "command", command="unpin"))
        trail.drain()
        entries = [logged.entry for logged in read_audit(tmp_path, running=True)[0]]
        assert [(entry.ts, entry.command) for entry in entries] == [(0.5, None), (1.0, "pin"), (2.0, "unpin")]
