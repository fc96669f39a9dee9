"""What is remembered across restarts, and what becomes of it when it is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged import remembered
from edged.domain.drift import LiveDrift
from edged.domain.guards import Budget
from edged.domain.regimes import Regimes
from edged.storage.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path) as opened:
        yield opened


def test_at_first_there_is_nothing(registry: Registry) -> None:
    assert remembered.regimes(registry) == Regimes()
    assert remembered.budget(registry) == Budget()
    assert not remembered.restore_drift(registry, LiveDrift(classes=True, features=2))


def test_what_was_kept_is_there_again(registry: Registry) -> None:
    regimes, budget = Regimes(), Budget().spent(3, 60.0)
    regimes.end(1000, "error", 2)
    live = LiveDrift(classes=True, features=2)
    for name, state in (("regimes", regimes), ("budget", budget), ("drift", live)):
        registry.set_value(name, state.state())
    assert remembered.regimes(registry) == regimes
    assert remembered.budget(registry) == budget
    assert remembered.restore_drift(registry, LiveDrift(classes=True, features=2))


def test_what_is_damaged_is_begun_anew(registry: Registry) -> None:
    registry.set_value("regimes", {"ended": "damaged"})
    registry.set_value("drift", {"errors": 1})
    assert remembered.regimes(registry) == Regimes()
    live = LiveDrift(classes=True, features=2)
    fresh = live.state()
    assert not remembered.restore_drift(registry, live)
    assert live.state() == fresh
