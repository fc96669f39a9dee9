"""How long samples wait for each other, for streams as they come."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.commits.commit_delay import CHAIN, CommitDelay


def commits(times: list[float], delay: float) -> list[int]:
    """Sizes of the commits of messages that come at these moments."""
    company, sizes = CommitDelay(delay), list[int]()
    for now in times:
        if company.due <= now:
            sizes.append(company.count)
            company.committed()
        company.record_arrival(1, now)
    return [*sizes, company.count]


def test_a_steady_stream_is_cut_by_the_delay_alone() -> None:
    sizes = commits([i / 100 for i in range(3000)], 5.0)
    assert sizes == [500, 500, 500, 500, 500, 500]


def test_random_arrivals_are_hardly_ever_cut_short() -> None:
    times = np.cumsum(np.random.default_rng(0).exponential(0.01, 20_000)).tolist()
    assert len(commits(times, 5.0)) <= 1.1 * times[-1] / 5.0 + 1


def test_sensors_that_send_all_at_once_have_a_commit_for_each_time() -> None:
    times = [second + i / 10_000 for second in range(20) for i in range(16)]
    sizes = commits(times, 0.9)
    assert sum(sizes) == len(times)
    assert len(sizes) <= 40


def test_rare_messages_do_not_wait_for_each_other() -> None:
    company = CommitDelay(5.0)
    for now in (0.0, 60.0, 120.0):
        company.record_arrival(1, now)
        assert company.due == pytest.approx(now + 0.25)
        company.committed()


def test_a_broker_that_waits_for_acknowledgements_is_not_waited_for() -> None:
    """It sends 32 messages, then nothing before they are acknowledged."""
    company, now, sent = CommitDelay(5.0), 0.0, 0
    while sent < 32 * (CHAIN + 1):
        company.record_arrival(32, now)
        now = max(now, company.due) + 0.002
        company.committed()
        sent += 32
    assert sent / now > 4000


def test_a_fast_stream_is_not_taken_for_bursts_for_long() -> None:
    company, sizes = CommitDelay(5.0), list[int]()
    company.record_arrival(20, 0.0)
    company.committed()
    for i in range(20_000):
        now = 1.0 + i / 1000
        if company.due <= now:
            sizes.append(company.count)
            company.committed()
        company.record_arrival(1, now)
    assert len(sizes) <= CHAIN + 5


def test_without_a_delay_nobody_waits() -> None:
    company = CommitDelay(0.0)
    company.record_arrival(1, 3.0)
    assert company.due == 3.0
    company.committed()
    assert company.due == float("inf")


@pytest.mark.parametrize("window", [1, 2, 5, 30])
def test_a_broker_that_keeps_few_messages_in_flight_is_hardly_slower_than_without_delay(window: int) -> None:
    """A commit takes 2 ms, and the next messages come 1 ms after their acknowledgement."""
    company, now, sent = CommitDelay(5.0), 0.0, 0
    while sent < 3000 * window:
        for i in range(window):
            company.record_arrival(1, now + i / 100_000)
        acknowledged = max(now, company.due) + 0.002
        company.committed(acknowledged)
        now, sent = acknowledged + 0.001, sent + window
    assert now < 3000 * 0.003 / 0.8


def test_a_window_that_was_taken_for_smaller_is_found_out() -> None:
    """The broker is set anew, and sends as fast as the sensor: a message each 20 ms."""
    company, now = CommitDelay(5.0), 0.0
    for _ in range(10):
        company.record_arrival(1, now)
        acknowledged = max(now, company.due) + 0.002
        company.committed(acknowledged)
        now = acknowledged + 0.001
    assert company.window == 1
    arrivals = [now + i / 50 for i in range(5000)]
    assert len(with_acknowledgements(company, arrivals)) <= CHAIN + 5000 / 250 + 5


@pytest.mark.parametrize("gap", [0.01, 0.1, 0.3, 0.7, 1.0, 1.7, 5.0, 10.0])
@pytest.mark.parametrize("random", [False, True])
def test_sensors_that_wait_for_nobody_cost_hardly_a_commit_more(gap: float, random: bool) -> None:
    rng = np.random.default_rng(3)
    gaps = rng.exponential(gap, 4000) if random else np.full(4000, gap)
    times = np.cumsum(gaps).tolist()
    learning = len(with_acknowledgements(CommitDelay(5.0), times))
    assert learning <= 1.05 * len(commits(times, 5.0)) + 3


def with_acknowledgements(company: CommitDelay, times: list[float]) -> list[int]:
    """As `commits`, where a commit takes 2 ms and the delay sees when it acknowledges."""
    sizes, busy = list[int](), 0.0
    for now in times:
        if company.due <= now:
            sizes.append(company.count)
            busy = company.due + 0.002
            company.committed(busy)
        company.record_arrival(1, max(now, busy), now)
    return [*sizes, company.count]
