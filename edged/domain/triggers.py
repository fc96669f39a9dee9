"""When a training run begins: triggers and guards as pure rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TriggerRules:
    """What starts a run, and what holds it back; times in seconds."""

    new_labels: int | None = 500
    min_new_samples: int = 500
    cooldown: float = 0.0


@dataclass
class Triggers:
    """Decides whether to train now. One run at a time; a command overrides all guards but that.

    Set `scheduled` when the schedule fires and `commanded` when someone asks; both are taken back by
    `decide` when they were acted on. A schedule that finds too little data is dropped, not kept.
    """

    rules: TriggerRules
    scheduled: bool = False
    commanded: bool = False
    last_end: float | None = None
    held_until: float = float("-inf")
    least: int = 0

    def hold(self, monotonic: float, seconds: float) -> None:
        """After a failed run: wait so long before the next automatic one."""
        self.held_until = monotonic + seconds

    def rest(self, times: int) -> int:
        """Wait for so many times the new labels that start a run; how many that is. A command ends it."""
        self.least = times * max(self.rules.new_labels or 0, self.rules.min_new_samples)
        return self.least

    def decide(self, new: int, monotonic: float) -> str | None:
        """The trigger of the run to start now, or None. `new` counts labelled samples not yet learned."""
        if self.commanded:
            self.commanded = self.scheduled = False
            self.least = 0
            return "command"
        if monotonic < self.held_until or new < self.least:
            return None
        if self.last_end is not None and monotonic - self.last_end < self.rules.cooldown:
            return None
        if self.scheduled:
            self.scheduled = False
            if new >= self.rules.min_new_samples:
                self.least = 0
                return "schedule"
        if self.rules.new_labels is not None and new >= self.rules.new_labels:
            self.least = 0
            return "labels"
        return None
