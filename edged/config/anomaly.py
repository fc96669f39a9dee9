"""Section `anomaly`: what counts as unusual, and when it is an alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from edged.config.values import Duration, Section
from edged.domain.stream.anomaly import AnomalyRules

RULES = {
    "low": AnomalyRules(rate=1e-4, raise_after=7),
    "normal": AnomalyRules(),
    "high": AnomalyRules(rate=5e-3, raise_after=3),
}
"""By sensitivity. docs/mqtt.md states the false alarms of each, and a test measures them."""


class AnomalyConfig(Section):
    """What counts as unusual, and when it is an alarm; for streams with `target: reconstruct`."""

    sensitivity: Literal["low", "normal", "high"] = Field(
        "normal",
        description="low: 1 in 10,000 normal samples may look unusual, and an alarm begins with 7 unusual"
        " ones among the newest 10 of a key; normal: 1 in 1,000, and 5 of 10; high: 5 in 1,000, and 3 of 10",
    )
    accept_after: Duration | None = Field(
        None,
        gt=0,
        description="an alarm that has stood for this long becomes the new normal; null: until the command"
        " `accept`",
    )

    def rules(self) -> AnomalyRules:
        """For the detector."""
        return replace(RULES[self.sensitivity], accept_after=self.accept_after)
