"""A disk that refuses commits: nothing is acknowledged, nothing is lost, nothing is predicted twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.config import MqttConfig
from edged.device.ingest import committer as module
from edged.errors import StorageError
from edged.mqtt.client.session import Session
from tests.device.dock import JOINED, Dock, again, delivery, running
from tests.running_device import wait_until

if TYPE_CHECKING:
    from edged.domain.stream.sample import Batch
    from edged.mqtt.client.message import ReceivedMessage
    from tests.mosquitto import Mosquitto


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path)) as made:
        yield made


def predicted(dock: Dock) -> list[float]:
    """First input of every sample handed over for prediction."""
    return [float(x) for batch in dock.batches for x in batch.x[:, 0]]


def test_what_cannot_be_committed_is_held_and_committed_later(dock: Dock) -> None:
    dock.log.failing = frozenset({1, 2})
    dock.work([delivery(mid) for mid in range(1, 11)])
    assert (dock.acknowledged, dock.stored(), dock.ingestor.waiting) == ([], 0, 10)
    dock.committer.commit()
    dock.committer.commit()
    assert [d.mid for d in dock.acknowledged] == list(range(1, 11))
    assert dock.inputs() == predicted(dock) == list(range(1, 11))
    assert (dock.committer.failed_commits, dock.redeliveries, dock.ingestor.waiting) == (2, 0, 0)


def test_the_thread_tries_again_by_itself_and_takes_its_complaint_back(dock: Dock) -> None:
    dock.log.broken = True
    with running(dock) as ingestor:
        ingestor.receive(delivery(1))
        wait_until(lambda: dock.committer.failed_commits >= 2)
        assert "disk I/O" in (dock.committer.problem or "")
        assert dock.acknowledged == []
        dock.log.broken = False
        wait_until(lambda: dock.acknowledged)
        wait_until(lambda: dock.committer.problem is None)
    assert (dock.stored(), dock.redeliveries, len(dock.batches)) == (1, 0, 1)
    assert dock.problems == ["samples.db: disk I/O error", None], "told once, however often it was tried"


def test_retries_come_less_often_but_never_later_than_five_seconds(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("edged.device.ingest.committer.time.monotonic", lambda: now[0])
    dock.log.broken = True
    dock.work([delivery(1)])
    pauses = []
    for _ in range(8):
        pauses.append(dock.committer.retry_at - now[0])
        now[0] = dock.committer.retry_at
        dock.committer.commit()
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_predictions_go_on_and_few_commits_make_up_for_the_outage(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, commit_rows=50)) as dock:
        dock.log.broken = True
        for mid in range(1, 101):
            dock.work([delivery(mid)])
        assert predicted(dock) == list(range(1, 101))
        dock.log.broken, before = False, dock.log.commits
        dock.committer.commit()
        assert dock.inputs() == list(range(1, 101))
        assert dock.log.commits - before <= 3
        assert [d.mid for d in dock.acknowledged] == list(range(1, 101))


def test_a_redelivery_of_what_is_held_is_acknowledged_on_its_own_connection(dock: Dock) -> None:
    dock.log.broken = True
    messages = [delivery(mid) for mid in range(1, 6)]
    dock.work(messages[:3])
    dock.work(messages[3:])
    dock.work([again(m) for m in messages])
    assert dock.ingestor.waiting == 5, "held once"
    dock.log.broken = False
    dock.committer.commit()
    assert [(d.mid, d.epoch) for d in dock.acknowledged] == [(mid, 2) for mid in range(1, 6)]
    assert dock.inputs() == predicted(dock) == [1, 2, 3, 4, 5]
    assert dock.committer.redelivered == 5


def test_no_more_is_held_than_allowed_and_the_rest_comes_again_in_order(tmp_path: Path) -> None:
    """As from a broker at MQTT 3.1.1, to which nobody can name a limit."""
    limit = MqttConfig().constants.receive_maximum + 100
    with closing(Dock(tmp_path, commit_rows=100)) as dock:
        dock.log.broken = True
        messages = [delivery(mid) for mid in range(1, limit + 501)]
        for start in range(0, len(messages), 100):
            dock.work(messages[start : start + 100])
        assert dock.ingestor.waiting == limit
        dock.log.broken = False
        dock.committer.commit()
        assert (len(dock.acknowledged), dock.redeliveries) == (limit, 1)
        dock.work([delivery(9000)])  # still on the old connection: must not overtake
        dock.work([again(m) for m in messages[limit:]])
        assert dock.inputs() == predicted(dock) == list(range(1, limit + 501))


def test_the_payloads_that_are_held_are_bounded_in_bytes(
    dock: Dock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", 5000)
    with closing(Dock(tmp_path)) as small:
        small.log.broken = True
        for mid in range(1, 101):
            small.work([delivery(mid, pad="a" * 970)])
        assert 3 <= small.ingestor.waiting <= 6


def test_a_commit_that_came_through_although_an_error_was_raised_is_not_repeated(dock: Dock) -> None:
    dock.log.late = frozenset({1})
    dock.work([delivery(1), delivery(2, payload=b"broken")])
    dock.work([delivery(3)])
    dock.committer.commit()
    assert (dock.inputs(), [d.mid for d in dock.acknowledged]) == ([1, 3], [1, 2, 3])
    assert dock.log.counters().quarantined == 1


def test_samples_are_stored_once_when_only_the_commit_of_their_labels_fails(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, JOINED)) as dock:
        messages = [delivery(1, id="a"), delivery(2, "labels/x", payload=b'{"id": "a", "label": "worn"}')]
        dock.log.failing = frozenset({2, 3})
        dock.work(messages)
        assert (dock.acknowledged, dock.stored()) == ([], 1)
        dock.work([again(m) for m in messages])  # the connection was lost meanwhile, too
        assert dock.acknowledged == []
        dock.committer.commit()
        assert (dock.stored(), dock.log.counters().labels) == (1, 1)
        assert {d.mid for d in dock.acknowledged if d.epoch == 2} == {1, 2}


def test_a_forecast_gets_the_right_labels_through_a_failure(tmp_path: Path) -> None:
    stream = {"features": 2, "task": {"forecast": {"horizon": 2}}, "key": "topic:1"}
    with closing(Dock(tmp_path, stream)) as dock:
        dock.log.failing = frozenset({2, 3})
        for mid in range(1, 9):
            dock.work([delivery(mid, f"s/m{mid % 2}")])
        dock.committer.commit()
        assert {u.offset: u.label for u in dock.labels} == {mid: float(mid + 4) for mid in range(1, 5)}


def test_an_eviction_that_fails_costs_nothing(dock: Dock, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def evict(now: float) -> int:
        calls.append(now)
        raise StorageError("disk I/O error", where="samples.db")

    monkeypatch.setattr(dock.log, "evict", evict)
    monkeypatch.setattr(module, "EVICT_SECONDS", 0.0)
    dock.work([delivery(1)])
    dock.work([delivery(2)])
    assert calls
    assert (len(dock.acknowledged), dock.committer.failed_commits, dock.committer.problem) == (2, 0, None)


def test_stopping_while_the_disk_fails_is_quick_and_leaves_all_to_the_broker(dock: Dock) -> None:
    dock.log.broken = True
    dock.ingestor.start()
    for mid in range(1, 11):
        dock.ingestor.receive(delivery(mid))
    wait_until(lambda: dock.committer.failed_commits >= 1)
    dock.ingestor.stop(5.0)
    wait_until(lambda: "ingest" not in {thread.name for thread in threading.enumerate()})
    assert (dock.acknowledged, dock.stored(), len(predicted(dock))) == ([], 0, 10)


def test_stopping_commits_what_a_disk_that_has_recovered_takes(dock: Dock) -> None:
    dock.log.broken = True
    dock.ingestor.start()
    dock.ingestor.receive(delivery(1))
    wait_until(lambda: dock.committer.failed_commits >= 4)  # the next attempt is far away
    dock.log.broken = False
    dock.ingestor.stop(5.0)
    assert (len(dock.acknowledged), dock.stored()) == (1, 1)


def test_after_an_unforeseen_error_all_comes_again_and_nothing_overtakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_RETRY", 0.1)
    with closing(Dock(tmp_path)) as dock:
        messages = [delivery(mid) for mid in range(1, 6)]
        usual = dock.on_batch

        def once(batch: Batch, received: Any) -> None:
            dock.on_batch = usual
            raise ValueError("not now")

        def late() -> None:
            dock.redeliveries += 1
            for message in messages[2:]:  # already on their way over the old connection
                dock.ingestor.receive(message)
            for message in messages:
                dock.ingestor.receive(again(message))

        dock.on_batch, dock.on_redeliver = once, late
        with running(dock) as ingestor:
            for message in messages[:2]:
                ingestor.receive(message)
            wait_until(lambda: len(dock.acknowledged) == 5)
        assert dock.redeliveries == 1
        assert dock.inputs() == [1, 2, 3, 4, 5]
        assert {d.epoch for d in dock.acknowledged} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_failed_commits_and_lost_connections_lose_nothing_and_double_nothing(
    tmp_path: Path, broker: Mosquitto, protocol: Any
) -> None:
    config = MqttConfig(host="127.0.0.1", port=broker.port, protocol=protocol)
    with closing(Dock(tmp_path, commit_rows=20)) as dock:
        dock.close()
        receiver, sender = (Session(config, client_id=name) for name in ("receiver", "sender"))
        dock.open(receiver)
        dock.log.failing = frozenset({2, 4, 5})
        came: dict[float, None] = {}  # in the order of the first delivery, which is the broker's business

        def receive(message: ReceivedMessage) -> None:
            came.setdefault(json.loads(message.payload)["x"][0])
            dock.ingestor.receive(message)

        receiver.subscribe(["s/#"], 1, receive)
        with running(dock):
            for session in (receiver, sender):
                session.start()
                assert session.wait_ready(20)
            for number in range(300):
                sender.publish("s/m1", json.dumps({"x": [number, number % 7]}).encode(), qos=1)
            for failures in (1, 3):
                wait_until(lambda least=failures: dock.committer.failed_commits >= least)  # type: ignore[misc]
                receiver.drop()
            wait_until(lambda: dock.stored() >= 300)
            for session in (sender, receiver):
                session.stop()
        assert dock.inputs() == predicted(dock) == list(came)
        assert sorted(came) == list(range(300))
