"""How long samples wait for each other, for streams as they come."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.commits.commit_delay import QUIET, CommitDelay

COMMIT_SECONDS = 0.002


def commits(times: list[float], delay: float, seconds: float = COMMIT_SECONDS) -> list[int]:
    """Sizes of the commits of messages that come at these moments; a commit takes `seconds` on average."""
    rng = np.random.default_rng(7)
    company, sizes, busy = CommitDelay(delay), list[int](), 0.0
    waiting = list[float]()  # while a commit is under way
    for now in times:
        if waiting and now >= busy:
            company.record_arrival(len(waiting), waiting[0], waiting[-1])
            waiting.clear()
        if company.due <= now:
            sizes.append(company.count)
            busy = max(company.due, busy) + seconds * rng.uniform(0.5, 1.5)
            company.committed(busy)
        if now < busy:
            waiting.append(now)
        else:
            company.record_arrival(1, now)
    return [*sizes, (company.count if company.first is not None else 0) + len(waiting)]


def test_a_steady_stream_is_cut_by_the_delay_alone() -> None:
    sizes = commits([i / 100 for i in range(3000)], 5.0)
    assert sum(sizes) == 3000
    assert min(sizes[1:-1]) >= 490


def test_random_arrivals_are_hardly_ever_cut_short() -> None:
    times = np.cumsum(np.random.default_rng(0).exponential(0.01, 20_000)).tolist()
    assert len(commits(times, 5.0)) <= 1.2 * times[-1] / 5.0 + 1


def test_sensors_that_send_all_at_once_have_a_commit_for_each_time() -> None:
    times = [second + i / 10_000 for second in range(20) for i in range(16)]
    sizes = commits(times, 0.9)
    assert sum(sizes) == len(times)
    assert len(sizes) <= 40


def test_rare_messages_do_not_wait_for_each_other() -> None:
    company = CommitDelay(5.0)
    for now in (0.0, 60.0, 120.0):
        company.record_arrival(1, now)
        assert company.due == pytest.approx(now + QUIET)
        company.committed(now + QUIET)


def test_without_a_delay_no_message_waits() -> None:
    company = CommitDelay(0.0)
    company.record_arrival(1, 3.0)
    assert company.due == 3.0
    company.committed(3.0)
    assert company.due == float("inf")


@pytest.mark.parametrize("window", [1, 2, 5, 30])
@pytest.mark.parametrize("together", [True, False])
def test_a_broker_that_keeps_few_messages_in_flight_waits_little_longer_than_a_pause(
    window: int, together: bool
) -> None:
    """A commit takes 2 ms, and the next messages come 1 ms after their acknowledgement."""
    company, now, sent = CommitDelay(5.0), 0.0, 0
    while sent < 3000 * window:
        for i in range(1 if together else window):
            company.record_arrival(window if together else 1, now + i / 100_000)
        acknowledged = max(now, company.due) + COMMIT_SECONDS
        company.committed(acknowledged)
        now, sent = acknowledged + 0.001, sent + window
    assert now < 3000 * (QUIET + COMMIT_SECONDS + 0.002)


def test_a_broker_that_waits_far_away_is_not_taken_for_a_slow_sensor() -> None:
    """Twenty messages come 50 ms after each acknowledgement."""
    company, now = CommitDelay(5.0), 0.0
    for _ in range(100):
        company.record_arrival(20, now)
        acknowledged = max(now, company.due) + COMMIT_SECONDS
        company.committed(acknowledged)
        now = acknowledged + 0.05
    assert now < 100 * 0.1


def test_a_flood_after_a_slow_stream_waits_once() -> None:
    company, now = CommitDelay(5.0), 0.0
    for now in range(1, 9):
        if company.due <= now:
            company.committed(float(now))
        company.record_arrival(1, float(now))
    began = now = company.due
    for _ in range(100):
        company.committed(now)
        company.record_arrival(1, now + 0.001)
        now = company.due + COMMIT_SECONDS
    assert now - began < 5.0 + 100 * 0.02


@pytest.mark.parametrize("gap", [0.01, 0.0125, 0.02, 0.1, 0.3, 0.7, 1.0, 1.7, 5.0, 10.0])
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("seconds", [0.002, 0.03, 0.2])
def test_sensors_share_commits_as_far_as_the_delay_allows(gap: float, random: bool, seconds: float) -> None:
    rng = np.random.default_rng(3)
    gaps = rng.exponential(gap, 4000) if random else np.full(4000, gap)
    times = np.cumsum(gaps).tolist()
    fewest = times[-1] / (5.0 + gap) if gap < 5.0 else 4000
    assert len(commits(times, 5.0, seconds)) <= 1.35 * fewest + 3
