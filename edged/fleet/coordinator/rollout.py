"""The stages of a rollout: which devices a stage has, when they get the model, and when it is ended early."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from edged.fleet.config import RolloutSection
from edged.fleet.rules.rollout import SpreadLimits, begun, overspread, spread
from edged.fleet.rules.selection import share_of
from edged.fleet.rules.verdict import StageVerdict, worse_of

if TYPE_CHECKING:
    from edged.domain.federated.messages import DeviceState, Evaluation
    from edged.domain.federated.settings import BaseModelInfo
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.rules.rounds import FleetState


class RolloutStages:
    """Carries the section `rollout` of `config` out; without the section it is not `configured`."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self.configured = config.rollout is not None
        rollout = self._rollout = config.rollout or RolloutSection()
        self._limits = SpreadLimits(
            rollout.rate, config.audience().hours, rollout.fleet_bytes, config.gate.wait
        )

    @property
    def fleet_bytes(self) -> int | None:
        """Bytes that all devices together may fetch and send a day; None for any number."""
        return self._rollout.fleet_bytes

    def name_of(self, stage: int) -> str:
        """A stage in words.

        >>> from edged.fleet.config import CoordinatorConfig
        >>> RolloutStages(CoordinatorConfig(fleet="plant", model="m")).name_of(0)
        '10 % of devices'
        """
        stages = self._config.stages
        found = stages[stage] if stage < len(stages) else 1.0
        return f"group {found}" if isinstance(found, str) else f"{found * 100:g} % of devices"

    def waits_for_approval(self, stage: int) -> bool:
        """Whether an operator decides after this stage, which has agreed."""
        approval, last = self._rollout.approval, len(self._config.stages) - 1
        return stage < last and (approval == "each" or (approval == "first" and stage == 0))

    def begin(
        self, course: FleetState, model: BaseModelInfo, stage: int, now: float,
        devices: Mapping[str, DeviceState], keep: int,
    ) -> FleetState:  # fmt: skip
        """Begin a stage, or the next one that has devices, and give the first of `devices` the model."""
        names = self._names(course, stage, devices)
        while not names and stage < len(self._config.stages) - 1:
            stage += 1
            names = self._names(course, stage, devices)
        return self.spread(begun(course, model, stage, names, now, keep), devices, now)

    def spread(self, course: FleetState, devices: Mapping[str, DeviceState], now: float) -> FleetState:
        """Give further devices the model that the rollout allows now."""
        return spread(course, devices, self._limits, now)

    def _names(self, course: FleetState, stage: int, devices: Mapping[str, DeviceState]) -> tuple[str, ...]:
        share = self._config.stages[stage]
        if isinstance(share, str):
            rule = self._config.groups[share].rule(share)
            return tuple(sorted(name for name, state in devices.items() if rule.includes(state.facts)))
        seed = "" if course.round is None else course.round.id
        return share_of(devices.keys(), share, seed, self._config.gate.least)

    def stopped(
        self, reports: Collection[Evaluation], before: Mapping[str, float], asked: set[str], *, ended: bool
    ) -> StageVerdict | None:
        """The verdict when too many devices do worse or send no report; None while the stage goes on."""
        gate = self._config.gate
        heard = {report.device for report in reports}
        worse = worse_of(reports, before, gate)
        reason = overspread(
            len(worse), len(asked - heard), len(heard), len(asked),
            ended=ended, abort=self._rollout.abort, least=gate.least,
        )  # fmt: skip
        return StageVerdict(accepted=False, reason=reason, dissenters=worse) if reason else None
