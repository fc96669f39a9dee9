"""From deliveries to durable samples: what is acknowledged when, stored once, and refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.domain.stream.forecast import Forecast
from tests.device.dock import CLASSIFY, JOINED, MATCHED, Dock, again, delivery, gathering, running
from tests.device.linear import samples
from tests.running_device import wait_until


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    with closing(Dock(tmp_path)) as made:
        yield made


# ---- acknowledgement -------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_it_is_durable(dock: Dock) -> None:
    for first in (1, 51):
        dock.work([delivery(mid) for mid in range(first, first + 50)])
    assert dock.durable_at_ack == [50, 100]
    assert dock.stored_at_batch == [0, 50], "predictions do not wait for the disk"
    assert dock.order == ["batch", "acknowledge"] * 2
    assert [d.mid for d in dock.acknowledged] == list(range(1, 101))


def test_samples_are_stored_as_they_came(dock: Dock) -> None:
    dock.work([delivery(7, "s/pump", ts=500.0, label="worn"), delivery(8)])
    (batch,) = dock.batches
    assert batch.keys == ["pump", "m1"]
    assert batch.ts.tolist() == [500.0, 1000.0], "without a time of its own that of arrival"
    assert batch.ingested.tolist() == [1000.0, 1000.0]
    assert batch.labels == [1.0, None]
    assert batch.offsets.tolist() == [1, 2]
    found = dock.log.rows(batch.offsets)
    assert (found.offsets.tolist(), found.y.tolist(), found.x.tolist()) == ([1], [[1.0]], [[7.0, 0.5]])
    assert dock.committed == 1


# ---- redelivery ------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_a_redelivery_is_acknowledged_but_not_stored_again(dock: Dock, restart: bool) -> None:
    messages = [delivery(1, label="ok"), delivery(2), delivery(3, payload=b"broken")]
    dock.work(messages)
    if restart:
        dock.close()
        dock.open()
    dock.work([again(m) for m in messages])
    assert (dock.stored(), dock.committer.redelivered, len(dock.acknowledged)) == (2, 3, 6)
    assert dock.log.counters().quarantined == 1
    assert len(dock.batches) == 1


def test_a_redelivery_that_waits_beside_the_first_delivery_is_recognised(dock: Dock) -> None:
    """As after a short loss of the connection, while the first delivery was still in the inbox."""
    message = delivery(1)
    dock.work([message, delivery(2), again(message), again(message)])
    assert (dock.stored(), dock.committer.redelivered) == (2, 2)


def test_an_equal_payload_that_is_no_redelivery_is_stored_again(dock: Dock) -> None:
    message = delivery(1)
    dock.work([message])
    dock.work([delivery(1), delivery(1)])
    same = delivery(9, payload=message.payload, dup=True)  # the flag, but another packet id
    dock.work([same])
    other = delivery(1, dup=True, payload=b'{"x": [5, 5]}')  # flag and packet id, but another content
    dock.work([other])
    assert (dock.stored(), dock.committer.redelivered) == (5, 0)


def test_a_packet_id_of_long_ago_is_no_redelivery(dock: Dock) -> None:
    dock.work([delivery(1)])
    for _ in range(6):
        dock.work([delivery(2 + n) for n in range(1000)])
    dock.work([again(delivery(1))])
    assert dock.stored() == 6002


# ---- quarantine ------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, str]] = {
    "not json": (b"{nope", "not_json"),
    "not an object": (b"[1, 2]", "wrong_type"),
    "field missing": (b'{"y": 1}', "missing_field"),
    "wrong type": (b'{"x": ["a", 1]}', "wrong_type"),
    "NaN": (b'{"x": [NaN, 1]}', "not_finite"),
    "Infinity": (b'{"x": [1e999, 1]}', "not_finite"),
    "wrong shape": (b'{"x": [1, 2, 3]}', "shape"),
    "too big": (b'{"x": [1, 2], "pad": "' + b"a" * 70_000 + b'"}', "too_big"),
    "too deep": (b"[" * 60_000, "too_deep"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_goes_to_the_quarantine_and_the_others_go_on(dock: Dock, name: str) -> None:
    payload, reason = BAD[name]
    dock.work([delivery(1), delivery(2, payload=payload), delivery(3)])
    assert (dock.stored(), len(dock.acknowledged)) == (2, 3)
    assert dock.log.quarantine_counts() == {reason: 1}
    (kept,) = dock.log.quarantine(10)
    assert (kept.topic, kept.reason, kept.payload) == ("s/m1", reason, payload[:4096])
    assert kept.detail
    assert [r.reason for r in dock.rejected] == [reason]


@pytest.mark.parametrize(
    ("label", "detail"),
    [
        ('"fine"', "label 'fine' is none of the 2 classes ok, worn"),
        ('"Worn"', "label 'Worn' is none of the 2 classes ok, worn: did you mean worn?"),
        ("2", "class 2 is outside 0..1 (ok, worn)"),
        ("[1]", "label of type list is no class: ok, worn are known"),
    ],
)
def test_a_label_that_is_unknown_goes_to_the_quarantine_and_its_sample_stays(
    dock: Dock, label: str, detail: str
) -> None:
    payload = f'{{"x": [1, 2], "label": {label}}}'.encode()
    dock.work([delivery(1, label="ok"), delivery(2, payload=payload), delivery(3)])
    (batch,) = dock.batches
    assert (dock.stored(), batch.labels, len(dock.acknowledged)) == (3, [0.0, None, None], 3)
    (kept,) = dock.log.quarantine(10)
    assert (kept.topic, kept.reason, kept.payload, kept.detail) == ("s/m1", "label", payload, detail)
    assert [r.reason for r in dock.rejected] == ["label"]


def test_a_missing_field_is_told_with_the_fields_that_are_there(tmp_path: Path) -> None:
    stream = {**CLASSIFY, "features": ["temp", "vib.x"]}
    messages = [b'{"Temp": 1, "vib": {"x": 2, "y": 3}}', b"{}", b'{"temp": 1}', b'{"\\ud800": 1}']
    with closing(Dock(tmp_path, stream)) as dock:
        for number, payload in enumerate(messages, 1):
            dock.work([delivery(number, payload=payload)])
        assert [kept.detail for kept in dock.log.quarantine(10)][::-1] == [
            "field 'temp' is missing: the message has Temp, vib.x, vib.y; did you mean Temp?",
            "field 'temp' is missing: it is empty",
            "field 'vib.x' is missing: the message has temp",
            "field 'temp' is missing: the message has ?",
        ]


def problem_of(dock: Dock) -> str | None:
    return dock.ingestor.decoder.problem


def test_most_messages_or_labels_that_are_refused_are_a_problem_until_most_are_taken(dock: Dock) -> None:
    dock.work([delivery(mid, payload=b"bad") for mid in (1, 2)])
    assert problem_of(dock) is None, "two say nothing yet"
    dock.work([delivery(3, payload=b"bad"), delivery(4, label="ok")])
    told = "most messages are refused, the newest: s/m1: "
    assert str(problem_of(dock)).startswith(told)
    dock.work([delivery(mid, payload=b'{"x": [1, 2], "label": "zzz"}') for mid in range(5, 9)])
    told = "most labels are refused, the newest: s/m1: label 'zzz' is none of the 2 classes ok, worn"
    assert problem_of(dock) == told, "the messages are good ones, all but three"
    assert (dock.stored(), dock.log.counters().labels) == (5, 1)
    dock.work([delivery(mid, label="worn") for mid in range(10, 13)])
    assert problem_of(dock) is None
    assert len(dock.problems) == 4, "each change is reported at once"


def test_a_batch_of_bad_messages_only_is_acknowledged_too(dock: Dock) -> None:
    dock.work([delivery(mid, payload=b"bad") for mid in (1, 2)])
    assert (len(dock.acknowledged), dock.batches, dock.log.counters().quarantined) == (2, [], 2)


# ---- labels ----------------------------------------------------------------------------------


def test_labels_find_their_samples_by_id(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, JOINED)) as dock:
        dock.work([delivery(mid, id=f"a{mid}") for mid in range(1, 6)])
        lost = delivery(9, "labels/x", payload=b'{"id": "nobody", "label": 1}')
        bad = delivery(10, "labels/x", payload=b'{"id": "a1", "label": "fine"}')
        found = [delivery(11, "labels/x", payload=b'{"id": "a2", "label": "worn"}'),
                 delivery(12, id="new"),
                 delivery(13, "labels/x", payload=b'{"id": "new", "label": "ok"}')]  # fmt: skip
        dock.work([lost, bad, *found])
        assert [(u.offset, u.label) for u in dock.labels] == [(2, 1.0), (6, 0.0)]
        assert dock.log.rows(np.array([2, 6])).y.tolist() == [[1.0], [0.0]]
        assert dock.log.quarantine_counts() == {"label": 1, "label_unmatched": 1}
        assert sorted(r.reason for r in dock.rejected) == ["label", "label_unmatched"]
        assert (dock.committed, len(dock.acknowledged)) == (2, 10)


@pytest.mark.parametrize("stream", [JOINED, {**CLASSIFY, "label": MATCHED}], ids=["ids", "no ids"])
def test_labels_find_their_samples_by_the_ids_of_predictions(stream: dict[str, Any], tmp_path: Path) -> None:
    with closing(Dock(tmp_path, stream)) as dock:
        dock.work([delivery(mid) for mid in range(1, 4)])
        labels = [b'{"id": "7-2", "label": "worn"}', b'{"id": "7-44", "label": "ok"}']
        dock.work([delivery(9 + at, "labels/x", payload=label) for at, label in enumerate(labels)])
        assert [(u.offset, u.label) for u in dock.labels] == [(2, 1.0)]
        assert dock.log.quarantine_counts() == {"label_unmatched": 1}


def test_many_labels_without_a_sample_are_a_problem(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, JOINED)) as dock:
        lost = [delivery(mid, "labels/x", payload=b'{"id": "nobody", "label": 1}') for mid in (1, 2, 3)]
        dock.work([delivery(9), *lost])
        told = "most labels are refused, the newest: no sample for label (id 'nobody', key None, ts None)"
        assert dock.ingestor.decoder.problem == told


def test_labels_that_come_too_late_go_to_the_quarantine(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, {**JOINED, "label": MATCHED | {"expiry": "1h"}})) as dock:
        dock.work([delivery(1, id="early")])
        dock.clock.advance_to(dock.clock.now() + 3000.0)
        dock.work([delivery(2, id="late")])
        dock.clock.advance_to(dock.clock.now() + 1000.0)
        dock.work([
            delivery(3, "labels/x", payload=b'{"id": "early", "label": "worn"}'),
            delivery(4, "labels/x", payload=b'{"id": "late", "label": "worn"}'),
        ])  # fmt: skip
        assert [(u.offset, u.label) for u in dock.labels] == [(2, 1.0)]
        assert dock.log.quarantine_counts() == {"label_expired": 1}
        assert [r.reason for r in dock.rejected] == ["label_expired"]
        assert len(dock.acknowledged) == 4


def test_a_clock_that_is_put_right_expires_no_label(tmp_path: Path) -> None:
    with closing(Dock(tmp_path, {**JOINED, "label": MATCHED | {"expiry": "1h"}})) as dock:
        dock.work([delivery(1, id="a")])
        dock.clock.step(1e9)
        dock.work([delivery(2, "labels/x", payload=b'{"id": "a", "label": "worn"}')])
        assert [u.offset for u in dock.labels] == [1]


def test_labels_find_their_samples_by_key_and_time(tmp_path: Path) -> None:
    stream = {**CLASSIFY, "label": MATCHED | {"join": "key_time"}}
    with closing(Dock(tmp_path, stream)) as dock:
        dock.work([delivery(mid, f"s/m{mid % 2}", ts=100.0 + mid) for mid in range(1, 9)])
        dock.work([delivery(20, "labels/m1", payload=b'{"ts": 105.2, "label": "worn"}')])
        assert [(u.offset, u.label, u.ts) for u in dock.labels] == [(5, 1.0, 105.2)]


def test_a_forecast_is_labelled_by_the_future_of_its_key(tmp_path: Path) -> None:
    stream = {"features": 2, "task": {"forecast": {"horizon": 2}}, "key": "topic:1"}
    with closing(Dock(tmp_path, stream)) as dock:
        for start in (1, 5):
            dock.work([delivery(mid, f"s/m{mid % 2}") for mid in range(start, start + 4)])
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
            dock.ingestor.receive(message)
        assert dock.ingestor.waiting == 1050
        with running(dock):
            wait_until(lambda: dock.ingestor.waiting == 0)
        assert max(len(batch) for batch in dock.batches) == 100
        assert (dock.ingestor.received, dock.stored()) == (1050, 1050)
        assert [d.mid for d in dock.acknowledged] == list(range(1, 1051))


# ---- company ---------------------------------------------------------------------------------


def test_a_steady_stream_is_predicted_at_once_and_committed_together(tmp_path: Path) -> None:
    with closing(gathering(tmp_path)) as dock:
        pause = threading.Event()
        with running(dock) as ingestor:
            for mid in range(1, 61):
                ingestor.receive(delivery(mid))
                wait_until(lambda: sum(map(len, dock.batches)) >= mid)  # noqa: B023
                pause.wait(0.01)
            wait_until(lambda: len(dock.acknowledged) == 60)
        assert dock.log.commits <= 8, "one for each message without company"
        assert len(dock.batches) > 20, "predictions do not wait for company"


def test_one_message_that_nothing_follows_does_not_wait(tmp_path: Path) -> None:
    with closing(gathering(tmp_path)) as dock, running(dock) as ingestor:
        ingestor.receive(delivery(1))
        wait_until(lambda: dock.acknowledged, 2.0)


@pytest.mark.parametrize("many", ["in flight", "bytes"])
def test_a_commit_waits_for_no_more_than_the_broker_sends_or_memory_holds(tmp_path: Path, many: str) -> None:
    """Else a broker that waits for acknowledgements, and we for its messages, would wait for each other."""
    small = many == "in flight"
    with closing(gathering(tmp_path, in_flight=20 if small else 2000)) as dock:
        pad = "" if small else "a" * 60_000
        dock.committer.delay.gap = 1.0  # messages came slowly so far
        dock.committer.delay.last = time.monotonic() - 1.0
        with running(dock) as ingestor:
            for mid in range(1, 20):
                ingestor.receive(delivery(mid, pad=pad))
            wait_until(lambda: len(dock.acknowledged) >= 10, 2.0)


def test_many_threads_may_deliver_and_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(Dock(tmp_path)) as dock:
        with running(dock) as ingestor:
            threads = [
                threading.Thread(
                    target=lambda first: [ingestor.receive(delivery(first + n)) for n in range(200)],  # type: ignore[func-returns-value]
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
