"""When a run begins, and how hard it learns after a drift, as pure rules. `guards` may hold it back."""

from __future__ import annotations

from dataclasses import dataclass

from edged.domain.training.training_run import RunOptions

FEWEST = 20  # new labels, below which not even a drift starts a run
SCARCE = 4  # times as many samples as labels are waited for: then half as many labels are enough


@dataclass
class Triggers:
    """Decides whether to train now. One run at a time; a command overrides all guards but that.

    `new_labels` start a run, and make a scheduled run worth it. None: none do, and one is worth it.
    Set `scheduled` when the schedule fires, `commanded` when someone asks, `interrupted` when a run was
    cut off, `drifted` and `fallen` when a drift is signalled or live quality falls; all are taken back when
    they were acted on. `warned` halves the new labels that start a run until one has begun; so does
    `arrived`, the samples since the last run, where few of them get labels. A schedule that finds too little
    data is dropped, not kept.
    """

    new_labels: int | None
    scheduled: bool = False
    commanded: bool = False
    interrupted: bool = False
    drifted: bool = False
    fallen: bool = False
    warned: bool = False
    arrived: int = 0
    held_until: float = float("-inf")
    least: int = 0

    def back_off(self, monotonic: float, seconds: float) -> None:
        """Start no automatic run for `seconds` after a failed one."""
        self.held_until = monotonic + seconds

    def cancelled(self, new: int) -> None:
        """Record that a run of `new` labels was cancelled: wait for as many more as start one."""
        self.interrupted = self.scheduled = self.drifted = self.fallen = self.warned = False
        self.least = new + (self.new_labels or 1)

    def wanted(self, new: int) -> str | None:
        """Return the trigger that would start a run with `new` labels, regardless of pauses."""
        if self.commanded:
            return "command"
        if self.interrupted:
            return "resume"
        return self._by_data(new) if new >= self.least else None

    def _by_data(self, new: int) -> str | None:
        if new >= FEWEST and (self.drifted or self.fallen):
            return "drift" if self.drifted else "quality"
        if self.scheduled:
            if new >= (self.new_labels or 1):
                return "schedule"
            self.scheduled = False
        return "labels" if new >= self.needed else None

    @property
    def needed(self) -> float:
        """New labels that start a run by themselves."""
        if self.new_labels is None:
            return float("inf")
        half = self.warned or self.until_scarce <= 0
        return max(self.new_labels / 2 if half else self.new_labels, self.least)

    @property
    def until_scarce(self) -> int:
        """Samples after which half as many labels are enough to start a run."""
        return SCARCE * (self.new_labels or 0) - self.arrived

    def pause_reason(self, monotonic: float) -> str | None:
        """Return why no automatic run can start: the pause after the previous one; None if one can."""
        if monotonic < self.held_until:
            return "a pause after a run that failed"
        return None

    def begun(self, trigger: str) -> None:
        """Record the start of a run and clear the trigger that asked for it."""
        if trigger == "command":
            self.commanded = False
        if trigger != "resume":
            self.least = 0
        self.interrupted = self.scheduled = self.drifted = self.fallen = self.warned = False


@dataclass
class DriftReaction:
    """Options of the next `runs` runs after a drift of the errors.

    They learn at `rate` times the learning rate, with batches of which at least `share` is new: the memory of
    a world that has changed counts for less, but is never thrown away.

    >>> reaction = DriftReaction(runs=1); reaction.drifted()
    >>> [reaction.options(1e-3, 0.25).to_json() for _ in range(2)]
    [{'learning_rate': 0.002, 'new_share': 0.5}, {}]
    """

    runs: int = 5
    rate: float = 2.0
    share: float = 0.5
    left: int = 0

    def drifted(self) -> None:
        """Begin with a drift of the errors."""
        self.left = self.runs

    def options(self, rate: float, share: float) -> RunOptions:
        """Return the options of the next run, for the configured learning rate and share of new rows."""
        if self.left == 0:
            return RunOptions()
        self.left -= 1
        return RunOptions(learning_rate=rate * self.rate, new_share=max(share, self.share))
