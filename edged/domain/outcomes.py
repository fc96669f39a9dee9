"""What training and the gate have done, in plain words: for events, status, pages and terminals.

Words are made here, from typed values, and nowhere else. They hold no times: whoever shows them adds the
time, in the zone of the reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edged.charts.figures import change, count, percent, plain
from edged.domain.judging.paired_test import PairedComparison
from edged.domain.judging.verdict import Verdict
from edged.domain.stream.schema import Schema, Task
from edged.domain.training.training_run import Candidate, RunEnd

HELD_BACK = "held-back cases"
FIRST = "first model trained for this stream"
BY_COMMAND = "command"
DISAPPOINTED = "probation failed: on live samples it was worse than its predecessor"
NOTHING_TO_DO = "Nothing to do; more {} help."

# ---- reasons of a verdict ----------------------------------------------------------------------


def beside(task: Task, found: PairedComparison, cases: str = HELD_BACK) -> str:
    """Both models on the same cases.

    >>> from edged.domain.judging.paired_test import PairedComparison
    >>> beside("classify", PairedComparison(100, 90, 3, 7, -0.04, 0.1, 0.9, 0.09, 0.05))
    'right in 91 of 100 held-back cases, the current model in 95'
    >>> beside("regress", PairedComparison(100, 0, 60, 40, 0.1, 0.9, 0.1, 0.9, 1.0))
    'mean error 10.0 % smaller than that of the current model in 100 held-back cases'
    """
    if task == "classify":
        right = f"{_right(found.n, found.candidate):,} of {found.n:,} {cases}"
        return f"right in {right}, the current model in {_right(found.n, found.champion):,}"
    return f"mean error {_smaller(found.gain)} that of the current model in {found.n:,} {cases}"


def gain_needed(task: Task, gain: float) -> str:
    """The reason for which a candidate that is no worse is rejected.

    >>> gain_needed("classify", 0.01), gain_needed("regress", 0.1)
    ('gate.min_gain asks for +1.0 points', 'gate.min_gain asks for an error 10.0 % smaller')
    """
    needed = change("accuracy", gain) if task == "classify" else f"an error {percent(gain)} smaller"
    return f"gate.min_gain asks for {needed}"


def lost_class(name: str, found: PairedComparison) -> str:
    """The reason for which a candidate that finds fewer of one class is rejected.

    >>> from edged.domain.judging.paired_test import PairedComparison
    >>> lost_class("worn", PairedComparison(20, 9, 2, 9, -0.35, 0.001, 0.99, 0.6, 0.25))
    'finds 8 of 20 held-back cases of worn, the current model 15'
    """
    ours, theirs = _right(found.n, found.candidate), _right(found.n, found.champion)
    return f"finds {ours:,} of {found.n:,} {HELD_BACK} of {name}, the current model {theirs:,}"


def forgets(task: Task, found: PairedComparison) -> str:
    """The reason for which a candidate that is worse on earlier data is rejected."""
    return f"forgets earlier data: {beside(task, found, f'earlier {HELD_BACK}')}"


def too_few(n: int, needed: int) -> str:
    """The reason of a verdict on `n` held-back cases, which are too few.

    >>> too_few(1, 20)
    'only 1 labelled held-back case, 20 needed'
    """
    return f"only {count(n, 'labelled held-back case')}, {needed:,} needed"


def pinned(version: int) -> str:
    """The reason of a verdict while a model is pinned."""
    return f"model {version} is pinned: unpin it to let new models serve"


def why_not(reasons: Sequence[str], numbers: Mapping[str, float], *, forgets: bool) -> str:
    """The kind of a rejection, without its numbers, so that like ones can be counted.

    >>> why_not(["right in 3 of 9 held-back cases"], {"judged_error": 0.6}, forgets=False)
    'worse than the current model'
    """
    kinds = {
        "lost_class": "finds fewer cases of one class",
        "judged_error": "forgets what earlier data taught" if forgets else "worse than the current model",
        "holdout": "too few labelled held-back cases",
    }
    return next((text for name, text in kinds.items() if name in numbers), "; ".join(reasons))


# ---- what became of a run ----------------------------------------------------------------------


def judged(
    stream: Schema,
    candidate: Candidate,
    verdict: Verdict,
    promoted: int | None,
    scale: NDArray[np.float32] | None = None,
) -> str:
    """What was learned and what became of it; `scale` `(targets,)` is what weighed the errors.

    >>> from pathlib import Path
    >>> from edged.domain.judging.verdict import Verdict
    >>> from edged.domain.stream.schema import Schema
    >>> from edged.domain.training.training_run import Candidate
    >>> stream, made = Schema((), 2, "classify", ("ok", "worn")), Candidate(3, Path(), None, samples=64)
    >>> numbers = {"holdout": 100, "candidate_error": 0.03, "judged_error": 0.03, "judged_before": 0.07}
    >>> judged(stream, made, Verdict(True, (), numbers), 5)[28:]
    'Tells worn from ok in 97 of 100 held-back cases (was 93). In service as model 5.'
    """
    opening = _opening(stream, candidate)
    if not verdict.accepted:
        return f"{opening} {_rejected(stream, verdict, scale)}"
    closing = "It would go into service." if promoted is None else f"In service as model {promoted}."
    if FIRST in verdict.reasons:
        return f"{opening} The {FIRST}. {closing}"
    result = _result(stream, verdict, scale)
    return " ".join(filter(None, [opening, result, closing]))


def _opening(stream: Schema, candidate: Candidate) -> str:
    if candidate.source == "weights":
        return "Received weights from elsewhere."
    if candidate.source == "bundle_install":
        return "Received a new bundle."
    return f"Learned from {count(candidate.samples, f'new {_material(stream)}')}."


def _material(stream: Schema) -> str:
    return "label" if stream.task in ("classify", "regress") else "sample"


def _result(stream: Schema, verdict: Verdict, scale: NDArray[np.float32] | None) -> str:
    """How well the new model does beside the one before it; empty if they were not compared."""
    numbers = verdict.numbers
    if "judged_error" not in numbers:
        return ""
    n = int(numbers["holdout"])
    if stream.task == "classify":
        ours, before = (_right(n, numbers[name]) for name in ("judged_error", "judged_before"))
        names = stream.named_classes
        what = f"Tells {names[1]} from {names[0]}" if len(names) == 2 else "Right"
        return f"{what} in {ours:,} of {n:,} {HELD_BACK} (was {before:,})."
    if stream.task == "reconstruct":
        less = _smaller(numbers["gain"])
        return f"Its error on {count(n, 'usual sample')} is {less} before; alarms now follow this model."
    ours_text, before_text = _errors(stream, numbers, scale)
    if not ours_text:
        return f"Its mean error in {n:,} {HELD_BACK} is {_smaller(numbers['gain'])} before."
    return f"Its mean error in {n:,} {HELD_BACK} is {ours_text} (was {before_text})."


def _errors(
    stream: Schema, numbers: Mapping[str, float], scale: NDArray[np.float32] | None
) -> tuple[str, str]:
    """Both mean errors in the unit of the target; empty if there are several targets."""
    if stream.targets != 1:
        return "", ""
    unit = f" {stream.target_units[0]}" if stream.target_units and stream.target_units[0] else ""
    weight = 1.0 if scale is None else float(scale[0])
    ours, before = (f"{plain(numbers[name] / weight)}{unit}" for name in ("judged_error", "judged_before"))
    return ours, before


def _rejected(stream: Schema, verdict: Verdict, scale: NDArray[np.float32] | None) -> str:
    numbers, reason = verdict.numbers, "; ".join(verdict.reasons[-1:])
    more = NOTHING_TO_DO.format(f"{_material(stream)}s")
    if "usual_limit" in numbers:
        text = f"{reason}. Check the newest labels; training continues with the next ones."
    elif "lost_class" in numbers:
        text = f"it {reason}. Check the newest labels of this class, or add more of them."
    elif "judged_error" in numbers:
        text = f"it {reason}. {more}" if verdict.forgets else f"{_would(stream, verdict, scale)}. {more}"
    elif "pinned" in numbers:
        text = f"{reason}."
    elif "holdout" in numbers:
        text = f"{reason}. {more}"
    else:
        text = f"{reason}. edged tries again with the next {_material(stream)}s; the log has the details."
    return f"Not used: {text}"


def _would(stream: Schema, verdict: Verdict, scale: NDArray[np.float32] | None) -> str:
    """What a candidate that is not good enough would be worth."""
    numbers = verdict.numbers
    n = int(numbers["holdout"])
    extra = "".join(f", and {reason}" for reason in verdict.reasons[1:])
    if stream.task == "classify":
        ours, before = (_right(n, numbers[name]) for name in ("judged_error", "judged_before"))
        return f"it would be right in {ours:,} of {n:,} {HELD_BACK}, the current model in {before:,}{extra}"
    ours_text, before_text = _errors(stream, numbers, scale)
    if stream.task == "reconstruct" or not ours_text:
        return f"its error would be {_smaller(numbers['gain'])} that of the current model{extra}"
    return (
        f"its mean error in {n:,} {HELD_BACK} would be {ours_text}, that of the current model is "
        f"{before_text}{extra}"
    )


def ended(end: RunEnd) -> str | None:
    """What became of a run without a candidate; None if it has one.

    >>> from edged.domain.training.training_run import RunEnd
    >>> ended(RunEnd(3, outcome="failed", error="killed by SIGSEGV"))
    'Training failed: killed by SIGSEGV. edged tries again by itself.'
    """
    if end.outcome == "failed":
        return f"Training failed: {end.error}. edged tries again by itself."
    if end.outcome == "no_data":
        return f"Nothing was learned: {end.error}."
    if end.outcome == "stopped":
        return f"Training was stopped: {end.error}. The current model keeps serving."
    return None


def paused_after(failures: int, reason: str, remedy: str) -> str:
    """Say that training is paused after failures.

    >>> paused_after(3, "killed by SIGSEGV", "send `train` to try again")
    'Training is paused after 3 failures in a row: killed by SIGSEGV. To do: send `train` to try again.'
    """
    return f"Training is paused after {count(failures, 'failure')} in a row: {reason}. To do: {remedy}."


def refused_again(times: int, cause: str) -> str:
    """Say that candidate after candidate is rejected."""
    return f"The last {times:,} new models were not used: {cause}. Check the newest labels and sensors."


def rolled_back(before: int, to: int, reason: str) -> str:
    """Why an earlier model serves again.

    >>> rolled_back(5, 4, BY_COMMAND)
    'Model 4 serves again by command. Model 5 counts as rejected.'
    """
    if reason == DISAPPOINTED:
        return (
            f"Model {before} did worse on live data than model {to}, so model {to} serves again. "
            "Nothing to do; edged keeps learning."
        )
    if reason == BY_COMMAND:
        return f"Model {to} serves again by command. Model {before} counts as rejected."
    return f"Model {to} serves in place of model {before}: {reason}."


def chosen(version: int) -> str:
    """That a command has put a stored model into service."""
    return f"Model {version} is in service by command."


def _right(n: int, error: float) -> int:
    return round(n * (1.0 - error))


def _smaller(gain: float) -> str:
    """A gain as a share of the error before.

    >>> _smaller(0.123), _smaller(-0.05), _smaller(0.0001)
    ('12.3 % smaller than', '5.0 % larger than', 'the same as')
    """
    if abs(gain) < 5e-4:
        return "the same as"
    return f"{percent(abs(gain))} {'smaller' if gain > 0 else 'larger'} than"
