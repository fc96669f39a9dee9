"""When a training run begins: triggers as pure rules. What may hold a run back is in `guards`."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST = 20  # new labels, below which not even a drift starts a run
SCARCE = 4  # times as many samples as labels are waited for: then half as many labels are enough


@dataclass(frozen=True)
class TriggerRules:
    """What starts a run, and what holds it back; times in seconds."""

    new_labels: int | None = 500
    min_new_samples: int = 500
    cooldown: float = 0.0
    drift: bool = True
    scarce: bool = False


@dataclass
class Triggers:
    """Decides whether to train now. One run at a time; a command overrides all guards but that.

    Set `scheduled` when the schedule fires, `commanded` when someone asks, `interrupted` when a run was
    cut off, `drifted` and `fallen` when a drift is signalled or live quality falls; all are taken back when
    they were acted on. `warned` halves the new labels that start a run until one has begun; so does
    `arrived`, the samples since the last run, where few of them get labels. A schedule that finds too little
    data is dropped, not kept.
    """

    rules: TriggerRules
    scheduled: bool = False
    commanded: bool = False
    interrupted: bool = False
    drifted: bool = False
    fallen: bool = False
    warned: bool = False
    arrived: int = 0
    last_end: float | None = None
    held_until: float = float("-inf")
    least: int = 0

    def back_off(self, monotonic: float, seconds: float) -> None:
        """Start no automatic run for `seconds` after a failed one."""
        self.held_until = monotonic + seconds

    def cancelled(self, new: int) -> None:
        """Record that a run of `new` labels was cancelled: wait for as many more as start one."""
        self.interrupted = self.scheduled = self.drifted = self.fallen = self.warned = False
        self.least = new + max(self.rules.new_labels or 0, self.rules.min_new_samples)

    def wanted(self, new: int) -> str | None:
        """Return the trigger that would start a run with `new` labels, regardless of pauses."""
        if self.commanded:
            return "command"
        if self.interrupted:
            return "resume"
        return self._by_data(new) if new >= self.least else None

    def _by_data(self, new: int) -> str | None:
        if new >= FEWEST and self.rules.drift and (self.drifted or self.fallen):
            return "drift" if self.drifted else "quality"
        if self.scheduled:
            if new >= self.rules.min_new_samples:
                return "schedule"
            self.scheduled = False
        return "labels" if new >= self.needed else None

    @property
    def needed(self) -> float:
        """New labels that start a run by themselves."""
        if self.rules.new_labels is None:
            return float("inf")
        half = self.warned or (self.rules.scarce and self.until_scarce <= 0)
        return max(self.rules.new_labels / 2 if half else self.rules.new_labels, self.least)

    @property
    def until_scarce(self) -> int:
        """Samples after which half as many labels are enough to start a run."""
        return SCARCE * (self.rules.new_labels or 0) - self.arrived

    def pause_reason(self, monotonic: float) -> str | None:
        """Return why no automatic run can start: the pause after the previous one; None if one can."""
        if monotonic < self.held_until:
            return "a pause after a run that failed"
        if self.last_end is not None and monotonic - self.last_end < self.rules.cooldown:
            return f"a cool-down of {self.rules.cooldown:g} s"
        return None

    def begun(self, trigger: str) -> None:
        """Record the start of a run and clear the trigger that asked for it."""
        if trigger == "command":
            self.commanded = False
        if trigger != "resume":
            self.least = 0
        self.interrupted = self.scheduled = self.drifted = self.fallen = self.warned = False
