"""Windows of readings: cut where they should be, resampled, broken by gaps, gone on with after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.stream.sample import Reading
from edged.domain.stream.windowing import (
    OpenWindowChanges,
    OpenWindowRow,
    OpenWindows,
    WindowHead,
    Windowing,
    WindowRules,
    chosen,
)

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue

T0 = 1_767_225_600.0  # as large as event times are, so that their rounding shows


def readings(
    x: Any, *, t: Sequence[float], key: str = "k", y: Sequence[LabelValue | None] | None = None
) -> list[Reading]:
    labels = [None] * len(x) if y is None else y
    return [
        Reading(key, np.atleast_1d(np.float32(row)), at, label, f"{key}{i}")
        for i, (row, at, label) in enumerate(zip(x, t, labels, strict=True))
    ]


def cut(windowing: Windowing, given_readings: Iterable[Reading]) -> list[Reading]:
    return [window for reading in given_readings for window in windowing.accept(reading)]


def values(windows: Sequence[Reading]) -> list[list[float]]:
    return [np.asarray(window.values).tolist() for window in windows]


# ---- where windows lie -------------------------------------------------------------------------


@settings(deadline=None)
@given(
    size=st.integers(2, 9),
    stride=st.integers(1, 14),
    channels=st.integers(1, 3),
    n=st.integers(0, 60),
    rate=st.sampled_from([None, 0.1, 1.0, 50.0, 333.0]),
)
def test_windows_of_regular_readings_are_slices(
    size: int, stride: int, channels: int, n: int, rate: float | None
) -> None:
    x = np.random.default_rng(n).normal(size=(n, channels)).astype(np.float32)
    t = T0 + np.arange(n) / (rate or 1.0)
    made = cut(Windowing(WindowRules(size, stride, rate), channels), readings(x, t=t.tolist()))
    starts = range(0, n - size + 1, stride)
    assert values(made) == [x[s : s + size].reshape(-1).tolist() for s in starts]
    assert [w.ts for w in made] == [t[s + size - 1] for s in starts]
    assert [w.id for w in made] == [f"k{s + size - 1}" for s in starts]


def test_every_key_has_windows_of_its_own() -> None:
    windowing = Windowing(WindowRules(3, 3), 1)
    one, two = (readings(np.arange(7) + first, t=range(7), key=key) for key, first in (("a", 0), ("b", 50)))
    made = cut(windowing, (reading for pair in zip(one, two, strict=True) for reading in pair))
    assert [(w.key, v) for w, v in zip(made, values(made), strict=True)] == [
        ("a", [0, 1, 2]), ("b", [50, 51, 52]), ("a", [3, 4, 5]), ("b", [53, 54, 55]),
    ]  # fmt: skip


# ---- resampling --------------------------------------------------------------------------------


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.sampled_from([0.5, 3.0, 50.0]))
def test_a_linear_signal_is_resampled_exactly(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    t = T0 + np.cumsum(rng.uniform(0.05, 2.5, 120)) / rate
    x = np.stack([t - T0, 5 - 3 * (t - T0)], axis=1)
    made = cut(Windowing(WindowRules(8, 4, rate), 2), readings(x, t=t.tolist()))
    grid = t[0] + np.arange(10_000) / rate
    for number, window in enumerate(made):
        moments = grid[4 * number : 4 * number + 8] - T0
        wanted = np.stack([moments, 5 - 3 * moments], axis=1).reshape(-1)
        # A reading may be off by a thousandth of a period; float32 rounds the rest.
        atol = 3.1e-3 / rate + 3e-7 * float(np.abs(x).max())
        np.testing.assert_allclose(np.asarray(window.values), wanted, rtol=0, atol=atol)
        assert window.ts == pytest.approx(grid[4 * number + 7], abs=2e-3 / rate)
    assert abs(len(made) - (((t[-1] - t[0]) * rate + 1 - 8) // 4 + 1)) <= 1


def test_a_reading_between_two_moments_is_interpolated_and_a_missing_one_made_up() -> None:
    windowing = Windowing(WindowRules(4, 4, 1.0, 2.5), 1)
    made = cut(windowing, readings([0, 15, 30, 50], t=[0.0, 1.5, 3.0, 5.0]))
    assert values(made) == [[0, 10, 20, 30]]
    assert (windowing.windows, windowing.gaps, windowing.late) == (1, 0, 0)


def test_the_largest_numbers_do_not_overflow_between_two_readings() -> None:
    largest = float(np.finfo(np.float32).max)
    (window,) = cut(Windowing(WindowRules(3, 3, 1.0), 1), readings([-largest, largest], t=[0, 2]))
    assert values([window]) == [[-largest, 0.0, largest]]


# ---- gaps and order ----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 1.0])
def test_a_gap_begins_a_new_window_at_the_reading_behind_it(rate: float | None) -> None:
    windowing = Windowing(WindowRules(3, 1, rate, 2.0), 1)
    t = [0, 1, 2, 3, 5.5, 6.5, 7.5, 9.5]
    made = cut(windowing, readings(t, t=t))
    behind = [[5.5, 6.5, 7.5], [6.5, 7.5, 9.5] if rate is None else [6.5, 7.5, 8.5]]
    assert values(made) == [[0, 1, 2], [1, 2, 3], *behind, *([] if rate is None else [[7.5, 8.5, 9.5]])]
    assert windowing.gaps == 1


def test_readings_out_of_order_are_dropped_and_counted() -> None:
    windowing = Windowing(WindowRules(3, 3), 1)
    made = cut(windowing, readings([0, 9, 1, 8, 2], t=[10, 9, 11, 10.5, 12]))
    assert (values(made), windowing.late, windowing.gaps) == ([[0, 1, 2]], 2, 0)


def test_equal_times_are_in_order_unless_a_grid_needs_them_apart() -> None:
    for rate, late in ((None, 0), (1.0, 1)):
        windowing = Windowing(WindowRules(3, 3, rate), 1)
        cut(windowing, readings([0, 1, 2], t=[10, 10, 11]))
        assert windowing.late == late


def test_a_clock_that_was_set_back_begins_anew() -> None:
    windowing = Windowing(WindowRules(4, 4, 1.0, 2.0), 1)
    cut(windowing, readings([0], t=[50_000]))
    made = cut(windowing, readings(range(9), t=range(9)))
    assert values(made) == [[3, 4, 5, 6]], "after three that were dropped"
    assert (windowing.late, windowing.gaps) == (4, 1)


def test_of_too_many_keys_those_heard_last_are_kept() -> None:
    windowing = Windowing(WindowRules(2, 2, most_keys=2), 1)
    for key in "abac":
        windowing.accept(Reading(key, [1.0], 0.0))
    assert windowing.forgotten == 1
    changes = windowing.changes()
    assert changes.heads["b"] is None
    assert {row.key for row in changes.rows.values()} == {"c"}, "the rows of the forgotten key are not stored"
    assert len(windowing.accept(Reading("c", [2.0], 1.0))) == 1
    assert len(windowing.accept(Reading("b", [2.0], 1.0))) == 0


# ---- labels ------------------------------------------------------------------------------------


def test_the_newest_label_inside_is_that_of_the_window() -> None:
    y = [None, 2.0, None, None, None, None, 1.0, None]
    made = cut(Windowing(WindowRules(4, 2), 1), readings(range(8), t=range(8), y=y))
    assert [w.label for w in made] == [2.0, None, 1.0]


def test_the_most_frequent_label_inside_and_of_equals_the_newest() -> None:
    y = [0.0, 0.0, 1.0, None, 1.0, 2.0]
    made = cut(Windowing(WindowRules(4, 1, label="majority"), 1), readings(range(6), t=range(6), y=y))
    assert [w.label for w in made] == [0.0, 1.0, 1.0]


def test_a_label_between_two_moments_belongs_to_the_next_one() -> None:
    windowing = Windowing(WindowRules(2, 2, 1.0), 1)
    made = cut(windowing, readings(range(5), t=[0, 0.4, 1.2, 1.5, 3], y=[None, 1.0, 2.0, None, None]))
    assert [w.label for w in made] == [1.0, 2.0]
    assert chosen([(1.0, 2.0), None, (3.0, 4.0)], "last") == (3.0, 4.0)


# ---- what is stored ----------------------------------------------------------------------------


def stored_after(changes: Iterable[OpenWindowChanges]) -> OpenWindows:
    """What a table holds after these changes, each made twice."""
    heads: dict[str, WindowHead] = {}
    rows: dict[int, OpenWindowRow] = {}
    for change in changes:
        for _ in range(2):
            for number in change.gone:
                rows.pop(number, None)
            rows |= change.rows
            for key, head in change.heads.items():
                heads.pop(key, None)
                if head is not None:
                    heads[key] = head
    return OpenWindows(heads, dict(sorted(rows.items())))


@settings(deadline=None)
@given(
    size=st.integers(2, 6),
    stride=st.integers(1, 9),
    rate=st.sampled_from([None, 1.0, 3.0]),
    gap=st.sampled_from([None, 1.7]),
    seed=st.integers(0, 10_000),
)
def test_after_a_restart_anywhere_the_same_windows_follow(
    size: int, stride: int, rate: float | None, gap: float | None, seed: int
) -> None:
    rules, rng = WindowRules(size, stride, rate, gap), np.random.default_rng(seed)
    t = T0 + np.cumsum(rng.uniform(-0.2, 1.2, 80))
    x, keys = rng.normal(size=(80, 2)).astype(np.float32), rng.choice(list("abc"), 80, p=[0.5, 0.4, 0.1])
    y = [float(rng.integers(3)) if rng.random() < 0.3 else None for _ in range(80)]
    given_readings = [Reading(str(k), x[i], float(t[i]), y[i]) for i, k in enumerate(keys)]
    wanted = cut(Windowing(rules, 2), given_readings)

    windowing, made = Windowing(rules, 2), []
    changes: list[OpenWindowChanges] = []
    for reading in given_readings:
        made += windowing.accept(reading)
        if rng.random() < 0.5:
            changes.append(windowing.changes())
            if rng.random() < 0.5:
                windowing = Windowing(rules, 2)
                windowing.restore(stored_after(changes))
    changes.append(windowing.changes())
    stored = stored_after(changes)
    assert [(w.key, w.ts, w.label) for w in made] == [(w.key, w.ts, w.label) for w in wanted]
    assert values(made) == values(wanted)
    assert len(stored.heads) <= 3
    assert len(stored.rows) < 3 * rules.size
    assert {row.key for row in stored.rows.values()} <= set(stored.heads)


def test_changes_that_are_put_together_are_the_same_as_one_after_the_other() -> None:
    windowing, parts = Windowing(WindowRules(3, 2), 1), []
    for reading in readings(range(12), t=range(12)):
        windowing.accept(reading)
        parts.append(windowing.changes())
    whole = OpenWindowChanges()
    for part in parts:
        whole.absorb(part)
    one, other = stored_after([whole]), stored_after(parts)
    assert one.heads == other.heads
    assert list(one.rows) == list(other.rows)


def test_open_windows_of_another_rate_are_dropped_from_the_store_too() -> None:
    before = Windowing(WindowRules(3, 3), 1)
    cut(before, readings([0, 1], t=[0, 1]))
    first = before.changes()
    after = Windowing(WindowRules(3, 3, 1.0), 1)
    after.restore(stored_after([first]))
    assert cut(after, readings([2, 3], t=[2, 3])) == []
    left = stored_after([first, after.changes()])
    assert ([row.x.tolist() for row in left.rows.values()], list(left.heads)) == ([[2], [3]], ["k"])
