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

    Set `scheduled` when the schedule fires, `commanded` when someone asks and `interrupted` when a run
    was cut off; they are taken back by `decide` when they were acted on. A schedule that finds too
    little data is dropped, not kept.
    """

    rules: TriggerRules
    scheduled: bool = False
    commanded: bool = False
    interrupted: bool = False
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
            self.commanded = self.scheduled = self.interrupted = False
            self.least = 0
            return "command"
        cooling = self.last_end is not None and monotonic - self.last_end < self.rules.cooldown
        if cooling or monotonic < self.held_until:
            return None
        if self.interrupted:
            self.interrupted = False
            return "resume"
        return self._by_data(new) if new >= self.least else None

    def _by_data(self, new: int) -> str | None:
        trigger = None
        if self.scheduled:
            self.scheduled = False
            trigger = "schedule" if new >= self.rules.min_new_samples else None
        if trigger is None and self.rules.new_labels is not None and new >= self.rules.new_labels:
            trigger = "labels"
        if trigger is not None:
            self.least = 0
        return trigger
