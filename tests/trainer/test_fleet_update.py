"""What goes from one round into the next lies with the update, and is there after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.federated.messages import RoundAnnouncement
from edged.domain.federated.settings import BaseModelInfo, RoundSettings
from edged.domain.stream.sample import Window
from edged.domain.training.trainer_messages import TrainRound
from edged.domain.training.weight_deltas import Coding, code, fingerprint
from edged.mqtt import weight_encoding
from edged.trainer.fleet_training import CarriedState, RoundContribution, RoundTrainer
from edged.trainer.fleet_update import FleetUpdateTrainer

if TYPE_CHECKING:
    from edged.domain.protocols import Engine

MODEL = {"w": np.ones((2, 3), np.float32)}


class Ten:
    """A device with ten samples."""

    def rows(self) -> Window:
        ids = np.arange(10)
        return Window(ids, ids, np.zeros((10, 2), np.float32), np.zeros((10, 1), np.float32))

    def measure(self, _engine: Engine) -> None:
        return None

    def parameters(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        return MODEL

    def last_seq(self) -> int:
        return 10


class Moving(RoundTrainer):
    """Trains nothing: it notes what it is given, and hands on one more of each."""

    def __init__(self) -> None:
        self.given: list[CarriedState] = []

    def train_round(self, *args: Any, **_: Any) -> RoundContribution:
        carried: CarriedState = args[2]
        self.given.append(carried)
        more = {"w": carried.moved.get("w", np.zeros((2, 3), np.float32)) + np.float32(1)}
        coded = code(MODEL, Coding("float32"))
        return RoundContribution(coded, CarriedState(more, {}, more), 10, 1, 1.0, 1.0, None, None)


def test_what_is_carried_survives_a_restart(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(weight_encoding.pack(MODEL))
    base = BaseModelInfo(fingerprint(MODEL), model.stat().st_size, 1)
    announced = RoundAnnouncement(
        "plant", 1, "0" * 32, "open", "b" * 64, base, 1.0, 2e9, 0.0, None, RoundSettings(dynamic=0.1)
    )
    given = []
    for run in range(3):
        participant = Moving()
        part = FleetUpdateTrainer("d", tmp_path / "state", participant, Ten(), 1 << 20)
        assert part.contribute(TrainRound(run, announced, model, seconds=60.0)).samples == 10
        given += participant.given
    assert given[0] == CarriedState()
    for count, carried in enumerate(given[1:], 1):
        assert carried.moved["w"].tolist() == carried.residual["w"].tolist() == [[float(count)] * 3] * 2
        assert carried.personal == {}
