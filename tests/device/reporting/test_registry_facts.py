"""What reports say of the registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.device.reporting.status import SUMMARY, RegistryFacts, StoredSummary
from edged.errors import StorageError
from edged.storage.models.registry import Registry
from tests.storage.models.test_registry import crowned


def test_facts_are_those_of_now(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        (first,) = crowned(registry, tmp_path)
        facts = RegistryFacts.of(registry, first)
        assert (facts.record.version, facts.runs, facts.run_count, facts.audit_head) == (first, (), 0, None)
        assert facts.reign is not None
        assert facts.reign.version == first

        run = registry.begin_run("command", 5.0)
        assert [record.ended for record in RegistryFacts.of(registry, first).runs] == [None]
        registry.end_run(run, 6.0, "done")
        registry.set_value(SUMMARY, StoredSummary("learned", 7.0).to_json())
        facts = RegistryFacts.of(registry, first)
        assert (facts.runs[0].ended, facts.run_count, facts.summary.summary) == (6.0, 1, "learned")

        (second,) = crowned(registry, tmp_path)
        facts = RegistryFacts.of(registry, second)
        assert facts.record.version == second
        assert facts.reign is not None
        assert facts.reign.version == second
        with pytest.raises(StorageError):
            RegistryFacts.of(registry, 99)
