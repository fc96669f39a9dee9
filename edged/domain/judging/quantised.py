"""Whether the quantised form of a candidate that the gate has accepted is what will be served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edged.charts.figures import percent
from edged.domain.judging.paired_test import compare
from edged.domain.model_files import INT8
from edged.domain.outcomes import too_few, two_forms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.judging.comparison import ModelComparison
    from edged.domain.judging.gate import Evidence
    from edged.domain.judging.verdict import Verdict
    from edged.domain.protocols import Model
    from edged.domain.stream.sample import Window


def choose_form(
    verdict: Verdict,
    load: Callable[[], tuple[Model, float] | None],
    comparison: ModelComparison,
    models: tuple[Model, Model],
    recent: Window,
    scale: NDArray[np.float32] | None,
    *,
    first: bool,
) -> Verdict:
    """The verdict with the form that will be served, and with what both forms came to.

    `verdict` is on the candidate as float32; where it is refused nothing is asked. `load` loads the quantised
    form and times it in seconds, or gives None where there is none. `models` are the candidate as float32 and
    the champion as it is served, which does not count when this is the `first` model of the stream.
    """
    if not verdict.accepted:
        return verdict
    found, fewest = load(), comparison.rules.min_holdout
    if found is None:
        return served_as_float32(verdict, "its bundle has no int8 form")
    if len(recent) < fewest:
        return served_as_float32(verdict, too_few(len(recent), fewest))
    (quantised, seconds), (model, champion) = found, models
    made = _beside(verdict, comparison.evidence(quantised, model, recent, scale), comparison, seconds)
    if made.form != INT8 or first:
        return made
    gate = comparison.evaluate(quantised, champion, recent, scale)
    if gate.accepted:
        return made
    why = f"the gate rejects int8: {'; '.join(gate.reasons)}"
    return served_as_float32(replace(verdict, numbers=made.numbers), why)


def _beside(verdict: Verdict, pair: Evidence, comparison: ModelComparison, seconds: float) -> Verdict:
    """Both forms of the candidate on the same rows: how much int8 loses, which may be `max_regret`."""
    rules = comparison.rules
    found = compare(comparison.schema.task, pair.candidate, pair.champion)
    as_int8, as_float32 = float(pair.candidate.mean()), float(pair.champion.mean())
    numbers = {
        "float32_error": as_float32,
        "int8_error": as_int8,
        "int8_samples": float(found.n),
        "int8_gain": found.gain,
        "int8_p_worse": found.p_worse,
        "int8_latency_s": seconds,
    }
    difference = two_forms(comparison.schema.task, found)
    made = replace(verdict, numbers={**verdict.numbers, **numbers})
    # Gains are absolute for classes and relative for values, and so is the limit.
    if -found.gain > rules.max_regret and found.p_worse < rules.significance:
        return served_as_float32(
            made, f"{difference}; gate.max_regret allows a loss of {percent(rules.max_regret)}"
        )
    return replace(made, form=INT8, reasons=(*made.reasons, f"served as int8: {difference}"))


def served_as_float32(verdict: Verdict, why: str) -> Verdict:
    """The same verdict, with the reason for which the quantised form does not serve."""
    return replace(verdict, reasons=(*verdict.reasons, f"served as float32: {why}"))


LARGEST = 127
# A smaller step could not be divided by.
TINY = np.finfo(np.float32).tiny


def quantise(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of the same shape as `values`, and the scale `(k,)` of each slice along `axis`.

    >>> quantise(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=0)[0].tolist()
    [[64, -127], [0, 0]]
    """
    others = tuple(i for i in range(values.ndim) if i != axis)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.maximum(largest / np.float32(LARGEST), TINY)
    whole = np.clip(np.rint(values / scale), -LARGEST, LARGEST)
    return whole.astype(np.int8), scale.reshape(-1)
