"""Configuration keys of earlier versions that exist no longer, each with its successor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edged.errors import ConfigError

_SENSITIVITY = "use anomaly.sensitivity: low, normal or high"

RETIRED: dict[str, str] = {
    "anomaly.calibrate": _SENSITIVITY,
    "anomaly.false_alarms": _SENSITIVITY,
    "anomaly.level": _SENSITIVITY,
    "anomaly.of": _SENSITIVITY,
    "anomaly.raise_after": _SENSITIVITY,
    "anomaly.window": _SENSITIVITY,
    "drift.detector": "remove it: adwin_correlated always watches the errors; drift.delta sets its"
    " sensitivity",
    "labels.pseudo": "remove it: labels.request_share requests labels",
    "model.beta1": "use model.optimizer: {name: adamw, beta1: ...}",
    "model.beta2": "use model.optimizer: {name: adamw, beta2: ...}",
    "model.bias_correction": "use model.optimizer: {name: adamw, bias_correction: ...}",
    "model.clip_norm": "use model.optimizer: {clip_norm: ...}",
    "model.dampening": "use model.optimizer: {name: sgd_momentum, dampening: ...}",
    "model.epsilon": "use model.optimizer: {name: adamw, epsilon: ...}",
    "model.momentum": "use model.optimizer: {name: sgd_momentum, momentum: ...}",
    "model.nesterov": "use model.optimizer: {name: sgd_momentum, nesterov: ...}",
    "model.weight_decay": "use model.optimizer: {weight_decay: ...}",
    "training.hard_share": "remove it: training.new_share sets the share of new samples",
    "training.patience": "remove it: training.steps and training.max_steps bound a run",
    "weights.top_k": "use weights.step with weights.mode: delta",
    "web.max_body": "use web.limits: {body: ...}",
    "web.max_connections": "use web.limits: {connections: ...}",
    "web.max_requests": "use web.limits: {requests: ...}",
    "web.max_rows": "use web.limits: {rows: ...}",
    "web.max_streams": "use web.limits: {streams: ...}",
}
"""Dotted keys, each with the remedy that the error about it names."""


def retired_in(data: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over the retired keys that a configuration contains, in the order of the table.

    >>> list(retired_in({"web": {"max_rows": 5}, "anomaly": None}))
    ['web.max_rows']
    """
    for dotted in RETIRED:
        section: Any = data
        *above, name = dotted.split(".")
        for key in above:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            yield dotted


def retired_key(dotted: str, where: str) -> ConfigError:
    """Return the error for a retired key at a place such as `edged.yaml:12: web.max_rows`."""
    return ConfigError("this key was removed", where=where, remedy=RETIRED[dotted])
