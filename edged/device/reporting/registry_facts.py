"""What reports say of the registry, read again only after something was written to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.device.promotion.summary import stored_summary
from edged.domain.audit_chain import Link
from edged.storage.journal.journal import RunRecord
from edged.storage.models.records import ModelRecord, Reign
from edged.storage.models.registry import Registry

if TYPE_CHECKING:
    from edged.device.promotion.summary import StoredSummary


@dataclass(frozen=True)
class RegistryFacts:
    """The champion's record, since when it serves, the two newest runs, and what else reports say."""

    record: ModelRecord
    reign: Reign | None
    runs: tuple[RunRecord, ...]  # newest first
    run_count: int
    audit_head: Link | None
    summary: StoredSummary


class RegistryReader:
    """Reads `RegistryFacts`; a registry that nobody has written to since says the same."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: tuple[tuple[int, int], RegistryFacts] | None = None

    def facts(self, champion: int) -> RegistryFacts:
        """What there is to say while version `champion` serves; StorageError when it has no record."""
        registry = self._registry
        state, known = (champion, registry.writes), self._known
        if known is not None and known[0] == state:
            return known[1]
        facts = RegistryFacts(
            record=registry.get(champion),
            reign=registry.reign(),
            runs=tuple(registry.runs(2)),
            run_count=registry.run_count(),
            audit_head=registry.audit_head(),
            summary=stored_summary(registry),
        )
        self._known = state, facts
        return facts
