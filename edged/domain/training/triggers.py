"""When a training run begins, and how hard it learns, as pure rules. `guards` may hold a run back."""

from __future__ import annotations

from dataclasses import dataclass

from edged.domain.training.training_run import RunOptions

FEWEST = 20  # new labels, below which not even a drift starts a run
SCARCE = 4  # times as many samples as labels are waited for: then half as many labels are enough
# Part of the share of new rows that is left where no answer is wrong; from this error on it is whole.
LEAST_PART, WHOLE_FROM = 0.3, 0.15


@dataclass
class Triggers:
    """Decides whether to train now. One run at a time; a command overrides all guards but that.

    `new_labels` make a scheduled run worth it, and start a run by themselves unless `labels_start` is False.
    Set `scheduled` when the schedule fires, `commanded` when someone asks, `interrupted` when a run was
    cut off, `drifted` and `fallen` when a drift is signalled or live quality falls; all are taken back when
    they were acted on. `warned` halves the new labels that start a run until one has begun; so does
    `arrived`, the samples since the last run, where few of them get labels. A schedule that finds too little
    data is dropped, not kept.
    """

    new_labels: int
    labels_start: bool = True
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
        self.least = new + self.new_labels

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
            if new >= self.new_labels:
                return "schedule"
            self.scheduled = False
        return "labels" if new >= self.needed else None

    @property
    def needed(self) -> float:
        """New labels that start a run by themselves."""
        if not self.labels_start:
            return float("inf")
        half = self.warned or self.until_scarce <= 0
        return max(self.new_labels / 2 if half else self.new_labels, self.least)

    @property
    def until_scarce(self) -> int:
        """Samples after which half as many labels are enough to start a run."""
        return SCARCE * self.new_labels - self.arrived

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


# ---- how hard the next runs learn ----------------------------------------------------------------


def emphasis(share: float, error: float) -> float:
    """Return the share of new rows in a batch while the share `error` of the newest answers is wrong.

    New rows come in one situation, which pulls at all that was learned in others. Where nearly all of them
    are answered rightly before they are learned, there is little to gain by that.

    >>> [round(emphasis(0.25, error), 3) for error in (0.0, 0.05, 0.15, 0.5)]
    [0.075, 0.133, 0.25, 0.25]
    """
    return share * (LEAST_PART + (1 - LEAST_PART) * min(1.0, error / WHOLE_FROM))


@dataclass
class LearningPolicy:
    """Options of the next runs beyond the configuration.

    After a drift of the errors `runs` runs learn at `rate` times the learning rate, with batches of which at
    least `share` is new: the memory of a world that has changed counts for less, but is never thrown away.
    Otherwise the share follows the live error, where that is known (`emphasis`).

    >>> policy = LearningPolicy(); policy.drifted(); policy.options(1e-3, 0.25).to_json()
    {'learning_rate': 0.002, 'new_share': 0.5}
    """

    runs: int = 5
    rate: float = 2.0
    share: float = 0.5
    left: int = 0

    def drifted(self) -> None:
        """Learn harder after a drift of the errors."""
        self.left = self.runs

    def options(self, rate: float, share: float, error: float | None = None) -> RunOptions:
        """Return the options of the next run, for the configured learning rate and share of new rows.

        `error` is the share of the newest answers that were wrong; None where that is not known.
        """
        if self.left:
            self.left -= 1
            return RunOptions(learning_rate=rate * self.rate, new_share=max(share, self.share))
        usual = share if error is None else emphasis(share, error)
        return RunOptions(new_share=None if usual == share else usual)
