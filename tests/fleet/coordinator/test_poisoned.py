"""Every way to spoil a mean: refused, answered, counted, and no bit of the model is another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from edged.domain.training.weight_coding import Coded, fingerprint
from edged.mqtt import weight_encoding
from tests.fleet.senders import SHAPES, Senders, base_weights, change_of, expected_model, update_of

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement
    from tests.conftest import MakeBroker
    from tests.fleet.conftest import MakeSite

NAMES = [f"d{n:03}" for n in range(12)]
OTHER = "f" * 32


@dataclass
class Bad:
    """A message that must be refused: on whose topic, with what line, blob and answer."""

    reason: str
    blob: bytes
    changed: dict[str, Any]
    device: str
    token: str

    def payload(self, line: bytes) -> bytes:
        return json.dumps(json.loads(line) | self.changed).encode() + b"\n" + self.blob


def weights_of(value: float, shape: tuple[int, ...] = (12, 8)) -> bytes:
    return weight_encoding.pack_coded({"w": Coded(np.ones(shape, np.int8), np.array(value, np.float32))})


def bad_ones(told: RoundAnnouncement) -> list[Bad]:
    _, good = update_of(told, "bad", *change_of("bad", 1, SHAPES))
    bomb = zstandard.compress(bytes(1 << 24))
    found: list[tuple[str, bytes, dict[str, Any]]] = [
        *(("not_finite", weights_of(value), {}) for value in (np.nan, np.inf, -np.inf)),
        ("samples", good, {"samples": 0}),
        *(("malformed", good, {"samples": samples}) for samples in (-5, 2.5)),
        ("base", good, {"base": "e" * 64}),
        ("round", good, {"id": OTHER}),
        ("shapes", weights_of(1.0, (1,)), {}),
        ("norm", weights_of(1e6), {}),
        ("damaged", bomb, {}),
        ("damaged", good, {"sha256": "0" * 64}),
        ("size", good, {"bytes": 10**9}),
        ("identity", good, {"device": NAMES[5]}),
        ("malformed", good, {"part": "first"}),
    ]
    made = []
    for number, (reason, blob, changed) in enumerate(found):
        token = OTHER if reason == "round" else told.id
        made.append(Bad(reason, blob, changed, f"bad{number}", token))
    again = update_of(told, NAMES[0], *change_of("another", 1, SHAPES))[1]
    return [*made, Bad("duplicate", again, {}, NAMES[0], told.id)]


def send(devices: Senders, told: RoundAnnouncement, bad: Bad) -> None:
    update, _ = update_of(told, bad.device, *change_of(bad.device, 1, SHAPES))
    [(topic, payload)] = update.messages(devices.topics, bad.blob)
    devices.publish(bad.device, topic, bad.payload(payload.partition(b"\n")[0]))
    devices.wait(lambda: devices.refused.get(bad.token, {}).get(bad.device) == bad.reason)


def test_poisoned_updates_change_no_bit(make_broker: MakeBroker, make_site: MakeSite) -> None:
    found = []
    for poisoned in (False, True):
        site = make_site(make_broker().port, round={"devices": len(NAMES), "rounds": 1, "window": 0})
        devices = site.senders(NAMES, hold=NAMES[1:])
        coordinator = site.start()
        told = devices.wait_state("open", 1)
        devices.wait(lambda devices=devices: devices.answered() == 1)  # type: ignore[misc]
        bad = bad_ones(told) if poisoned else []
        for one in bad:
            send(devices, told, one)
        assert coordinator.admission.refused.total() == len(bad)
        assert {*coordinator.admission.refused} == {one.reason for one in bad}
        devices.release()
        site.finish()
        found.append(coordinator.course.standing.hash)
    assert found == [fingerprint(expected_model(base_weights(), NAMES))] * 2


def test_what_is_clipped_counts_with_the_bound(make_broker: MakeBroker, make_site: MakeSite) -> None:
    site = make_site(make_broker().port, round={"devices": 2, "rounds": 1, "window": 0})
    large = {"w": np.full((12, 8), 2.0 / np.sqrt(96), np.float32)}
    samples = {"a": 100, "b": 300}

    def messages(told: RoundAnnouncement, name: str) -> list[tuple[str, bytes]]:
        change = large if name == "a" else {"w": -0.1 * large["w"]}
        update, blob = update_of(told, name, change, samples[name])
        return list(update.messages(devices.topics, blob))

    devices = site.senders(["a", "b"], messages=messages)
    coordinator = site.start()
    site.finish()
    digest = coordinator.course.standing.hash
    moved = site.model(digest)["w"] - base_weights()["w"]
    assert np.allclose(moved, (0.5 * 100 - 0.1 * 300) / 400 * large["w"], atol=1e-4)
