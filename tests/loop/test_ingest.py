"""From deliveries to durable samples: what is acknowledged when, stored once, and refused."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.config import MqttConfig, StorageConfig, StreamConfig
from edged.errors import StorageError
from edged.loop.ingest import Forecast, Ingest
from edged.mqtt.codecs import JsonCodec, LabelCodec
from edged.mqtt.delivery import Delivery
from edged.mqtt.session import Session
from edged.mqtt.topics import matches
from edged.storage.samples import SampleLog
from tests.device import wait_until
from tests.loop.linear import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from edged.demo.broker import Mosquitto
    from edged.domain.sample import Batch, LabelUpdate, Rejected

CLASSIFY: dict[str, Any] = {
    "features": 2,
    "classes": ["ok", "worn"],
    "label": "label",
    "key": "topic:1",
    "ts": "ts",
}
JOINED: dict[str, Any] = {**CLASSIFY, "id": "id", "label_topic": "labels/#"}


class FailingLog(SampleLog):
    """A sample log whose disk fails on the commits of these numbers, counted from 1."""

    failing: frozenset[int] = frozenset()
    commits = 0

    def commit(self, *arguments: Any, **named: Any) -> None:
        self.commits += 1
        if self.commits in self.failing:
            raise StorageError("disk I/O error", where="samples.db")
        super().commit(*arguments, **named)


class Dock:
    """Ingest on a log of its own; notes what it hands on, and what was durable at that moment."""

    def __init__(self, folder: Path, stream: dict[str, Any] | None = None, **storage: Any) -> None:
        self.path = folder / "samples.db"
        self.stream = StreamConfig(**(stream or CLASSIFY))
        self.schema = self.stream.to_schema()
        self.config = StorageConfig(dir=folder, commit_delay=0, **storage)
        self.acknowledged: list[Any] = []
        self.durable_at_ack: list[int] = []
        self.batches: list[Batch] = []
        self.stored_at_batch: list[int] = []
        self.labels: list[LabelUpdate] = []
        self.rejected: list[Rejected] = []
        self.redeliveries = 0
        self.on_redeliver: Callable[[], None] = self._count_redelivery
        self.committed = 0
        self.order: list[str] = []
        self.open()

    def open(self, session: Session | None = None) -> None:
        """Begin, or begin anew as after a restart."""
        log = FailingLog.open(self.path, self.schema, holdout=0.1)
        assert isinstance(log, FailingLog)
        self.log: FailingLog = log
        codec, filters = JsonCodec(self.stream), self.stream.label_topic
        forecast = (
            (self.stream.forecast_columns, self.stream.horizon) if self.schema.task == "forecast" else None
        )
        self.ingest = Ingest(
            config=self.config,
            schema=self.schema,
            unacknowledged=MqttConfig().receive_maximum,
            store=self.log,
            clock=VirtualClock(1000.0),
            decode=codec.decode,
            decode_label=LabelCodec(self.stream).decode if filters else None,
            is_label=(lambda topic: matches(filters, topic)) if filters else (lambda _: False),
            acknowledge=self._acknowledge if session is None else session.ack,
            redeliver=self._redeliver if session is None else session.drop,
            on_batch=self._on_batch,
            on_labels=self.labels.extend,
            on_committed=self._on_committed,
            on_rejected=self.rejected.append,
            beat=lambda: None,
            forecast=forecast,
        )

    def stored(self) -> int:
        """Samples that another connection sees: only what is committed."""
        with closing(SampleLog.open(self.path, self.schema, readonly=True)) as reader:
            return reader.counters().samples

    def _acknowledge(self, deliveries: Sequence[Any]) -> None:
        self.order.append("acknowledge")
        self.acknowledged.extend(deliveries)
        self.durable_at_ack.append(self.stored())

    def _redeliver(self) -> None:
        self.on_redeliver()

    def _count_redelivery(self) -> None:
        self.redeliveries += 1

    def _on_batch(self, batch: Batch, received: Any) -> None:
        assert len(received) == len(batch)
        self.order.append("batch")
        self.batches.append(batch)
        self.stored_at_batch.append(self.stored())

    def _on_committed(self, labelled: int) -> None:
        self.committed += labelled

    def close(self) -> None:
        self.log.close()


@contextmanager
def running(dock: Dock) -> Iterator[Ingest]:
    """The ingest thread; what was received is worked on when the block ends."""
    dock.ingest.start()
    yield dock.ingest
    dock.ingest.stop()


def delivery(
    mid: int, topic: str = "s/m1", *, dup: bool = False, payload: bytes | None = None, **fields: Any
) -> Delivery:
    body = payload if payload is not None else json.dumps({"x": [mid, 0.5], **fields}).encode()
    return Delivery(topic, body, mid, 1, dup, False, 1, 0.0)


def again(first: Delivery) -> Delivery:
    """The same, delivered once more by the broker."""
    return Delivery(first.topic, first.payload, first.mid, 1, True, False, 2, 0.0)


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path)) as made:
        yield made


# ---- acknowledgement -------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_it_is_durable(dock: Dock) -> None:
    for first in (1, 51):
        dock.ingest.work([delivery(mid) for mid in range(first, first + 50)])
    assert dock.durable_at_ack == [50, 100]
    assert dock.stored_at_batch == [0, 50], "predictions do not wait for the disk"
    assert dock.order == ["batch", "acknowledge"] * 2
    assert [d.mid for d in dock.acknowledged] == list(range(1, 101))


def test_samples_are_stored_as_they_came(dock: Dock) -> None:
    dock.ingest.work([delivery(7, "s/pump", ts=500.0, label="worn"), delivery(8)])
    (batch,) = dock.batches
    assert batch.keys == ["pump", "m1"]
    assert batch.ts.tolist() == [500.0, 1000.0], "without a time of its own that of arrival"
    assert batch.ingested.tolist() == [1000.0, 1000.0]
    assert batch.labels == [1.0, None]
    assert batch.offsets.tolist() == [1, 2]
    found = dock.log.rows(batch.offsets)
    assert (found.offsets.tolist(), found.y.tolist(), found.x.tolist()) == ([1], [[1.0]], [[7.0, 0.5]])
    assert dock.committed == 1


def test_a_failed_commit_acknowledges_nothing_and_is_made_good_later(dock: Dock) -> None:
    dock.log.failing = frozenset({1})
    messages = [delivery(mid) for mid in range(1, 11)]
    with pytest.raises(StorageError, match="disk I/O"):
        dock.ingest.work(messages)
    assert (dock.acknowledged, dock.stored()) == ([], 0)
    dock.ingest.work([again(m) for m in messages])
    assert (len(dock.acknowledged), dock.stored()) == (10, 10)
    assert dock.log.recent_inputs(10)[:, 0].tolist() == list(range(1, 11))


def test_the_thread_asks_for_redelivery_after_a_failed_commit(tmp_path: Path) -> None:
    with closing(Dock(tmp_path)) as dock:
        dock.log.failing = frozenset({1})
        with running(dock) as ingest:
            ingest.receive(delivery(1))
            wait_until(lambda: dock.redeliveries == 1)
            assert (dock.ingest.failed_commits, dock.acknowledged) == (1, [])
            assert "disk I/O" in (ingest.problem or "")
            ingest.receive(again(delivery(1)))
            wait_until(lambda: len(dock.acknowledged) == 1)
            assert ingest.problem is None
        assert (dock.stored(), dock.redeliveries) == (1, 1)


def test_what_still_comes_over_a_connection_that_was_given_up_does_not_overtake(tmp_path: Path) -> None:
    with closing(Dock(tmp_path)) as dock:
        dock.log.failing = frozenset({1})
        messages = [delivery(mid) for mid in range(1, 6)]

        def late() -> None:
            dock.redeliveries += 1
            for message in messages[2:]:  # already on their way
                dock.ingest.receive(message)
            for message in messages:
                dock.ingest.receive(again(message))

        dock.on_redeliver = late
        with running(dock) as ingest:
            for message in messages[:2]:
                ingest.receive(message)
            wait_until(lambda: len(dock.acknowledged) == 5)
        assert dock.redeliveries == 1
        assert dock.log.recent_inputs(10)[:, 0].tolist() == [1, 2, 3, 4, 5]
        assert {d.epoch for d in dock.acknowledged} == {2}


@pytest.mark.slow
def test_the_broker_delivers_again_what_a_failed_commit_left(tmp_path: Path, broker: Mosquitto) -> None:
    config = MqttConfig(host="127.0.0.1", port=broker.port, reconnect_max=1)
    with closing(Dock(tmp_path, commit_rows=20)) as dock:
        dock.close()
        receiver, sender = (Session(config, client_id=name) for name in ("receiver", "sender"))
        dock.open(receiver)
        dock.log.failing = frozenset({2, 4})
        receiver.subscribe(["s/#"], 1, dock.ingest.receive)
        with running(dock):
            for session in (receiver, sender):
                session.start()
                assert session.wait_ready(20)
            for number in range(300):
                sender.publish("s/m1", json.dumps({"x": [number, number % 7]}).encode(), qos=1)
            wait_until(lambda: dock.stored() >= 300)
            for session in (sender, receiver):
                session.stop()
        assert dock.ingest.failed_commits >= 1
        assert dock.log.recent_inputs(1000)[:, 0].tolist() == list(range(300))


# ---- redelivery ------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_a_redelivery_is_acknowledged_but_not_stored_again(dock: Dock, restart: bool) -> None:
    messages = [delivery(1, label="ok"), delivery(2), delivery(3, payload=b"broken")]
    dock.ingest.work(messages)
    if restart:
        dock.close()
        dock.open()
    dock.ingest.work([again(m) for m in messages])
    assert (dock.stored(), dock.ingest.redelivered, len(dock.acknowledged)) == (2, 3, 6)
    assert dock.log.counters().quarantined == 1
    assert len(dock.batches) == 1


def test_a_redelivery_that_waits_beside_the_first_delivery_is_recognised(dock: Dock) -> None:
    """As after a short loss of the connection, while the first delivery was still in the inbox."""
    message = delivery(1)
    dock.ingest.work([message, delivery(2), again(message), again(message)])
    assert (dock.stored(), dock.ingest.redelivered) == (2, 2)


def test_an_equal_payload_that_is_no_redelivery_is_stored_again(dock: Dock) -> None:
    message = delivery(1)
    dock.ingest.work([message])
    dock.ingest.work([delivery(1), delivery(1)])
    same = delivery(9, payload=message.payload, dup=True)  # the flag, but another packet id
    dock.ingest.work([same])
    other = delivery(1, dup=True, payload=b'{"x": [5, 5]}')  # flag and packet id, but another content
    dock.ingest.work([other])
    assert (dock.stored(), dock.ingest.redelivered) == (5, 0)


def test_a_packet_id_of_long_ago_is_no_redelivery(dock: Dock) -> None:
    dock.ingest.work([delivery(1)])
    for _ in range(6):
        dock.ingest.work([delivery(2 + n) for n in range(1000)])
    dock.ingest.work([again(delivery(1))])
    assert dock.stored() == 6002


def test_samples_are_stored_once_when_only_the_commit_of_their_labels_fails(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, JOINED)) as dock:
        messages = [delivery(1, id="a"), delivery(2, "labels/x", payload=b'{"id": "a", "label": "worn"}')]
        dock.log.failing = frozenset({2})
        with pytest.raises(StorageError):
            dock.ingest.work(messages)
        assert dock.acknowledged == []
        dock.ingest.work([again(m) for m in messages])
        assert (dock.stored(), dock.log.counters().labels, len(dock.acknowledged)) == (1, 1, 2)


# ---- quarantine ------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "not json": (b"{nope", "not_json"),
    "not an object": (b"[1, 2]", "wrong_type"),
    "field missing": (b'{"y": 1}', "missing_field"),
    "wrong type": (b'{"x": ["a", 1]}', "wrong_type"),
    "NaN": (b'{"x": [NaN, 1]}', "not_finite"),
    "Infinity": (b'{"x": [1e999, 1]}', "not_finite"),
    "wrong shape": (b'{"x": [1, 2, 3]}', "shape"),
    "unknown class": (b'{"x": [1, 2], "label": "fine"}', "label"),
    "class out of range": (b'{"x": [1, 2], "label": 2}', "label"),
    "too big": (b'{"x": [1, 2], "pad": "' + b"a" * 70_000 + b'"}', "too_big"),
    "too deep": (b"[" * 60_000, "too_deep"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_goes_to_the_quarantine_and_the_others_go_on(dock: Dock, name: str) -> None:
    payload, reason = BAD[name]
    dock.ingest.work([delivery(1), delivery(2, payload=payload), delivery(3)])
    assert (dock.stored(), len(dock.acknowledged)) == (2, 3)
    assert dock.log.quarantine_counts() == {reason: 1}
    (kept,) = dock.log.quarantine(10)
    assert (kept.topic, kept.reason, kept.payload) == ("s/m1", reason, payload[:4096])
    assert kept.detail
    assert [r.reason for r in dock.rejected] == [reason]


def test_a_batch_of_bad_messages_only_is_acknowledged_too(dock: Dock) -> None:
    dock.ingest.work([delivery(mid, payload=b"bad") for mid in (1, 2)])
    assert (len(dock.acknowledged), dock.batches, dock.log.counters().quarantined) == (2, [], 2)


# ---- labels ----------------------------------------------------------------------------------


def test_labels_find_their_samples_by_id(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, JOINED)) as dock:
        dock.ingest.work([delivery(mid, id=f"a{mid}") for mid in range(1, 6)])
        lost = delivery(9, "labels/x", payload=b'{"id": "nobody", "label": 1}')
        bad = delivery(10, "labels/x", payload=b'{"id": "a1", "label": "fine"}')
        found = [delivery(11, "labels/x", payload=b'{"id": "a2", "label": "worn"}'),
                 delivery(12, id="new"),
                 delivery(13, "labels/x", payload=b'{"id": "new", "label": "ok"}')]  # fmt: skip
        dock.ingest.work([lost, bad, *found])
        assert [(u.offset, u.label) for u in dock.labels] == [(2, 1.0), (6, 0.0)]
        assert dock.log.rows(np.array([2, 6])).y.tolist() == [[1.0], [0.0]]
        assert dock.log.quarantine_counts() == {"label": 1, "label_unmatched": 1}
        assert sorted(r.reason for r in dock.rejected) == ["label", "label_unmatched"]
        assert (dock.committed, len(dock.acknowledged)) == (2, 10)


def test_labels_find_their_samples_by_key_and_time(tmp_path: Path) -> None:
    stream = {**CLASSIFY, "label_topic": "labels/#", "join": "key_time"}
    with closing(Dock(tmp_path, stream)) as dock:
        dock.ingest.work([delivery(mid, f"s/m{mid % 2}", ts=100.0 + mid) for mid in range(1, 9)])
        dock.ingest.work([delivery(20, "labels/m1", payload=b'{"ts": 105.2, "label": "worn"}')])
        assert [(u.offset, u.label, u.ts) for u in dock.labels] == [(5, 1.0, 105.2)]


def test_a_forecast_is_labelled_by_the_future_of_its_key(tmp_path: Path) -> None:
    stream = {"features": 2, "target": "forecast", "horizon": 2, "key": "topic:1"}
    with closing(Dock(tmp_path, stream)) as dock:
        for start in (1, 5):
            dock.ingest.work([delivery(mid, f"s/m{mid % 2}") for mid in range(start, start + 4)])
        # Of each key every second message; the label is the first value two messages later.
        assert {u.offset: u.label for u in dock.labels} == {mid: float(mid + 4) for mid in range(1, 5)}
        window = dock.log.rows(np.arange(1, 9))
        assert window.offsets.tolist() == [1, 2, 3, 4]
        assert window.y[:, 0].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_a_forecast_of_several_values() -> None:
    forecast = Forecast((1, 0), 1)
    x = np.array([[1, 2], [3, 4]], np.float32)
    (update,) = forecast.update(samples(1, x))
    assert (update.offset, update.label) == (1, (4.0, 3.0))


# ---- the thread ------------------------------------------------------------------------------


def test_a_flood_is_cut_into_commits_of_bounded_size(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, commit_rows=100)) as dock:
        messages = [delivery(mid) for mid in range(1, 1051)]
        for message in messages:
            dock.ingest.receive(message)
        assert dock.ingest.waiting == 1050
        with running(dock):
            wait_until(lambda: dock.ingest.waiting == 0)
        assert max(len(batch) for batch in dock.batches) == 100
        assert (dock.ingest.received, dock.stored()) == (1050, 1050)
        assert [d.mid for d in dock.acknowledged] == list(range(1, 1051))


def test_many_threads_may_deliver_and_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(Dock(tmp_path)) as dock:
        with running(dock) as ingest:
            threads = [
                threading.Thread(
                    target=lambda first: [ingest.receive(delivery(first + n)) for n in range(200)],  # type: ignore[func-returns-value]
                    args=(200 * number + 1,),
                )
                for number in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(d.mid for d in dock.acknowledged) == list(range(1, 801))
        assert dock.stored() == 800
