"""A daemon in a fleet: rounds over a real broker, with the real trainer and the real gate."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.federated.messages import BaseModelInfo, RoundSettings
from edged.domain.training.weight_coding import difference
from edged.engines.model_parameters import initial_parameters
from edged.signing import Unsealer, new_pair
from edged.storage.models.signatures import sign_bundle
from edged.trainer.fleet_rounds import norm
from tests.coordinator import Coordinator, led_to
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
QUIET: dict[str, Any] = {"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01}
GATE = {"probation": 0, "min_holdout": 10}
CONFIG = RoundSettings(epochs=20, learning_rate=0.01, batch_size=32, clip_norm=3.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A network for the stream, built once: the daemons of this file need not."""
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics
    from tests.building import build

    path = tmp_path_factory.mktemp("bundles") / "classifier"
    return build(
        mlp(6, 3, (64,)), path, loss="cross_entropy", standardise=Statistics.identity(6), engine="portable"
    )


@pytest.fixture
def coordinator(broker: Mosquitto) -> Iterator[Coordinator]:
    made = Coordinator(broker.port)
    yield made
    made.close()


def device(
    folder: Path, broker: Mosquitto, bundle: Bundle, model: dict[str, Any] | None = None, **fleet: Any
) -> Device:
    section = {"name": "plant", **fleet}
    model = model or {"bundle": str(bundle.path)}
    return Device(folder, broker.port, STREAM, model=model, training=QUIET, gate=GATE, fleet=section)


def feed(listener: Listener, count: int, seed: int = 0) -> None:
    """Labelled samples of a rule that a small network learns at once."""
    x = np.random.default_rng(seed).normal(size=(count, 6))
    before = len(listener.messages["predictions"])
    for row in x:
        listener.send("sensors/a", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_device_trains_in_rounds_and_takes_the_fleets_model(
    broker: Mosquitto, bundle: Bundle, coordinator: Coordinator, tmp_path: Path
) -> None:
    made = device(tmp_path, broker, bundle)
    with running(made, broker.port) as listener:
        assert "too few" in coordinator.state(ready=False).why_not
        feed(listener, 500)
        # Samples are predicted before they are committed: one that came after the round would be new.
        wait_until(lambda: made.cli("status", str(made.path))["samples"] == 500)
        state = coordinator.state(ready=True)
        assert (state.device, state.last_round, state.idle) == ("rig", 0, True)
        first = initial_parameters(bundle)
        base = coordinator.model(first)
        blob = check_update_survives_a_kill(made, listener, coordinator, base, state.bundle)
        better = led_to(first, blob)
        length = norm(difference(better, first))
        assert abs(length - CONFIG.clip_norm) <= 0.02 * CONFIG.clip_norm  # clipped, then rounded
        assert 2 * len(blob) < sum(value.nbytes for value in first.values())
        check_model_is_taken(listener, coordinator, better, state.bundle)
        check_refusals(listener, coordinator, state.bundle)
        check_round_is_declined(listener, coordinator, base, state.bundle)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_device_keeps_to_its_bytes_a_day(
    broker: Mosquitto, bundle: Bundle, coordinator: Coordinator, tmp_path: Path
) -> None:
    made = device(tmp_path, broker, bundle, tags=["north", "spare"])
    with running(made, broker.port) as listener:
        feed(listener, 300)
        state = coordinator.state(ready=True)
        assert state.tags == ("north", "spare")
        base = coordinator.model(initial_parameters(bundle))
        coordinator.announce(3, base, state.bundle, CONFIG, daily_bytes=base.bytes - 1)
        listener.wait(lambda: listener.events("fleet_declined"))
        assert listener.events("fleet_declined")[0]["round"] == 3
        assert "more than today's budget has left" in listener.events("fleet_declined")[0]["reason"]
        told = coordinator.announce(4, base, state.bundle, CONFIG, daily_bytes=base.bytes + 1)
        coordinator.wait(lambda: coordinator.of(told), 60)
        used = "budget of bytes for today used"
        coordinator.wait(lambda: coordinator.states[-1].why_not == used)
        assert [event["round"] for event in listener.events("fleet_trained")] == [4]
        coordinator.acknowledge(told, accepted=("rig",))
        made.stop(signal.SIGKILL)
        made.start()
        coordinator.states.clear()
        coordinator.wait(lambda: coordinator.states and coordinator.states[-1].why_not == used)
        # Killed before it took the receipt, it gets it again.
        listener.wait(lambda: any(e["model"] == base.hash for e in listener.events("fleet_model")))
        coordinator.announce(5, base, state.bundle, CONFIG)
        coordinator.wait(lambda: coordinator.states[-1].why_not != used)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_device_that_wants_signed_models_serves_none_of_a_fleet(
    broker: Mosquitto, bundle: Bundle, coordinator: Coordinator, tmp_path: Path
) -> None:
    new_pair(tmp_path / "maker")
    signed = shutil.copytree(bundle.path, tmp_path / "signed")
    sign_bundle(signed, tmp_path / "maker")
    made = device(tmp_path, broker, bundle, model={"bundle": "signed", "keys": ["maker.pub"]})
    with running(made, broker.port) as listener:
        feed(listener, 500)
        coordinator.state(ready=True)
        first = initial_parameters(bundle)
        announced = coordinator.announce(1, coordinator.model(first), bundle.fingerprint, CONFIG)
        coordinator.wait(lambda: coordinator.of(announced), 60)
        better = coordinator.model(led_to(first, coordinator.of(announced)[-1][1]))
        coordinator.announce(1, better, bundle.fingerprint, CONFIG, state="done")
        listener.wait(lambda: any(e["model"] == better.hash for e in listener.events("fleet_model")), 60)
        judged = next(e for e in listener.events("fleet_model") if e["model"] == better.hash)
        assert (judged["taken"], "model.keys" in judged["reason"]) == (False, True)
        assert not listener.events("model_promoted")


def check_update_survives_a_kill(
    made: Device, listener: Listener, coordinator: Coordinator, base: BaseModelInfo, bundle: str
) -> bytes:
    """An update without receipt is sent again, also by the next process; then no more."""
    announced = coordinator.announce(1, base, bundle, CONFIG)
    coordinator.wait(lambda: len(coordinator.of(announced)) >= 2, 60)
    assert made.stop(signal.SIGKILL) == -signal.SIGKILL
    sent = len(coordinator.of(announced))
    made.start()
    coordinator.wait(lambda: len(coordinator.of(announced)) > sent, 60)
    came = coordinator.of(announced)
    assert len({blob for _, blob in came}) == 1  # the same update, not another one of the same round
    line, blob = came[-1]
    assert (line.device, line.round, line.base, line.parts) == ("rig", 1, base.hash, 1)
    assert line.samples > 400
    coordinator.acknowledge(announced, accepted=("someone", "rig"))
    listener.wait(lambda: listener.events("fleet_accepted"))
    assert coordinator.state(ready=False).last_round == 1  # nothing is new since
    return blob


def check_model_is_taken(listener: Listener, coordinator: Coordinator, better: Any, bundle: str) -> None:
    """What the round has made passes the gate, and the device reports what it makes of it."""
    base = coordinator.model(better)
    announced = coordinator.announce(1, base, bundle, CONFIG, state="done")
    coordinator.wait(lambda: any(e.id == announced.id for e in coordinator.evaluations), 60)
    told = next(e for e in coordinator.evaluations if e.id == announced.id)
    assert told.taken
    assert told.model.loss < told.before.loss
    assert told.standing is not None  # the model of round 1 is still there
    # Events may wait in the outbox, evaluations do not; one that waits comes after its successor.
    listener.wait(lambda: listener.events("fleet_model") and listener.events("model_promoted"))
    assert listener.events("model_promoted")[-1]["origin"] == "weights"
    assert [e["taken"] for e in listener.events("fleet_model")][-1] is True


def check_refusals(listener: Listener, coordinator: Coordinator, bundle: str) -> None:
    """A model that is not what was announced, and one of another network."""
    other = coordinator.model({"w": np.zeros(3, np.float32)})
    coordinator.announce(2, other, bundle, CONFIG, state="done")
    listener.wait(
        lambda: any("parameter w: this device" in e["reason"] for e in listener.events("fleet_failed")), 60
    )
    false = BaseModelInfo("0" * 64, other.bytes, other.parts)
    coordinator.publish(coordinator.topics.model(false.hash, 0), b"x" * false.bytes, retain=True)
    coordinator.announce(3, false, bundle, CONFIG, state="done")
    listener.wait(lambda: any(e["round"] == 3 for e in listener.events("fleet_failed")), 60)


def check_round_is_declined(
    listener: Listener, coordinator: Coordinator, base: BaseModelInfo, bundle: str
) -> None:
    """While training rests, no round is trained in; afterwards the one that is still open is."""
    feed(listener, 20, seed=1)
    coordinator.state(ready=True)
    listener.request("pause", what="training")
    assert coordinator.state(ready=False).why_not == "training is paused"
    announced = coordinator.announce(4, base, bundle, CONFIG)
    listener.wait(lambda: any(e["round"] == 4 for e in listener.events("fleet_declined")), 60)
    listener.request("resume", what="training")
    coordinator.wait(lambda: coordinator.of(announced), 60)
    coordinator.acknowledge(announced, refused={"rig": "stale"})
    listener.wait(lambda: [e["reason"] for e in listener.events("fleet_refused")] == ["stale"])


@pytest.mark.full
@pytest.mark.timeout(150)
def test_with_keys_only_signed_rounds_and_receipts_count(
    broker: Mosquitto, bundle: Bundle, coordinator: Coordinator, tmp_path: Path
) -> None:
    """Nobody else on the broker can have it train, and nothing that was signed counts again later."""
    new_pair(tmp_path / "fleet")
    new_pair(tmp_path / "stranger")
    made = device(tmp_path, broker, bundle, keys=["fleet.pub"])
    with running(made, broker.port) as listener:
        feed(listener, 200)
        base = coordinator.model(initial_parameters(bundle))
        forged = [coordinator.announce(1, base, bundle.fingerprint, CONFIG)]
        coordinator.key = tmp_path / "stranger"
        forged.append(coordinator.announce(2, base, bundle.fingerprint, CONFIG))
        coordinator.key = tmp_path / "fleet"
        announced = coordinator.announce(3, base, bundle.fingerprint, CONFIG)
        coordinator.wait(lambda: coordinator.of(announced), 60)
        assert not any(coordinator.of(one) for one in forged)

        coordinator.key = None
        sent = len(coordinator.of(announced))
        coordinator.acknowledge(announced, accepted=("rig",))
        coordinator.wait(lambda: len(coordinator.of(announced)) > sent, 90)  # it keeps sending
        coordinator.key = tmp_path / "fleet"
        coordinator.acknowledge(announced, accepted=("rig",))
        listener.wait(lambda: [e["round"] for e in listener.events("fleet_accepted")] == [3])

        feed(listener, 20, seed=1)
        old = coordinator.announce(4, base, bundle.fingerprint, CONFIG, opened=announced.opened - 1.0)
        newer = coordinator.announce(5, base, bundle.fingerprint, CONFIG)
        coordinator.wait(lambda: coordinator.of(newer), 60)
        assert not coordinator.of(old)
        assert "fleet_round_old" in made.log.read_text()
        coordinator.acknowledge(newer, accepted=("rig",))

        assert coordinator.sealed == []
        feed(listener, 20, seed=2)
        secret = Unsealer(tmp_path / "fleet").public
        sealed = coordinator.announce(6, base, bundle.fingerprint, CONFIG, seal=secret)
        coordinator.wait(lambda: coordinator.of(sealed), 60)
        assert {"state", "up"} <= set(coordinator.sealed)
