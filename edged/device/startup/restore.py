"""What a daemon continues from after a restart, as the registry has it; what cannot be read begins again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.domain.drift.live import LiveDrift
from edged.domain.judging.expert_mix import Mix, mix_of
from edged.domain.judging.prediction_sets import PredictionSets
from edged.domain.judging.ridge_head import RidgeHead
from edged.domain.stream.anomaly import Anomalies
from edged.domain.stream.schema import Schema
from edged.domain.training.guards import Budget
from edged.errors import CorruptError
from edged.logs import get_logger
from edged.storage.models.registry import Registry

log = get_logger("edged.remembered")


def stored_mix(registry: Registry, schema: Schema, head: RidgeHead | None = None) -> Mix:
    """Return how much each expert counts, `head` among them; the same for all where that cannot be read."""
    mix = mix_of(schema, head)
    restore_mix(registry, mix)
    return mix


def restore_mix(registry: Registry, mix: Mix) -> None:
    """Continue with the stored weights of experts, where they can be read."""
    _restore(registry, "mix", mix.restore, "expert_mix_lost")


def stored_sets(registry: Registry, coverage: float | None, schema: Schema) -> PredictionSets | None:
    """Return what makes sets of this coverage, None without one; a new one where it cannot be read."""
    if coverage is None:
        return None
    from edged.domain.judging.prediction_sets import PredictionSets

    sets = PredictionSets(coverage, schema)
    _restore(registry, "sets", sets.restore, "prediction_sets_lost")
    return sets


def restore_drift(registry: Registry, drift: LiveDrift) -> bool:
    """Restore the drift detectors; False where they begin again."""
    return _restore(registry, "drift", drift.restore, "drift_state_lost")


def restore_anomalies(registry: Registry, anomalies: Anomalies | None) -> bool:
    """Restore thresholds and alarms; False where they begin again."""
    return anomalies is not None and _restore(registry, "anomalies", anomalies.restore, "anomalies_lost")


def _restore(registry: Registry, name: str, restore: Callable[[Any], bool | None], lost: str) -> bool:
    """Restore a stored value, where there is one; log the event `lost` where it cannot be read."""
    kept = registry.get_value(name)
    try:
        return kept is not None and restore(kept) is not False
    except (CorruptError, LookupError, TypeError, ValueError) as problem:
        log.warning(lost, problem=f"{type(problem).__name__}: {problem}")
        return False


def stored_budget(registry: Registry) -> Budget:
    """Return what training has cost today."""
    return Budget.from_json(registry.get_value("budget") or {})
