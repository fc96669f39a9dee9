"""What goes from one round into the next lies with the update, and is there after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.federated.messages import BaseModelInfo, RoundAnnouncement, RoundSettings
from edged.domain.federated.round_orders import TrainRound
from edged.domain.training.weight_coding import code, fingerprint
from edged.mqtt import weight_encoding
from edged.trainer.fleet_rounds import FleetUpdateTrainer, RoundContribution, RoundTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    Weights = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]

MODEL = {"w": np.ones((2, 3), np.float32)}


class Ten:
    """The log of a device with ten samples."""

    def last_seq(self) -> int:
        return 10


class Moving(RoundTrainer):
    """Trains nothing: it notes what it is given, and hands on one more of each."""

    def __init__(self) -> None:
        self.given: list[Weights] = []

    def train_round(self, *args: Any, **_: Any) -> RoundContribution:
        residual: Weights = args[2]
        self.given.append(residual)
        more = {"w": residual.get("w", np.zeros((2, 3), np.float32)) + np.float32(1)}
        return RoundContribution(code(MODEL, "int8"), more, 10, 1, 1.0)


def announced_model(folder: Path) -> tuple[RoundAnnouncement, Path]:
    model = folder / "model"
    model.write_bytes(weight_encoding.pack(MODEL))
    base = BaseModelInfo(fingerprint(MODEL), model.stat().st_size, 1)
    settings = RoundSettings()
    return RoundAnnouncement(
        "plant", 1, "0" * 32, "open", "b" * 64, base, 1.0, 2e9, 0.0, None, settings
    ), model


def test_what_is_carried_survives_a_restart(tmp_path: Path) -> None:
    announced, model = announced_model(tmp_path)
    given = []
    for run in range(3):
        participant, log = Moving(), Ten()
        part = FleetUpdateTrainer("d", tmp_path / "state", participant, log)  # type: ignore[arg-type]
        assert part.contribute(TrainRound(run, announced, model, seconds=60.0)).samples == 10
        given += participant.given
    assert given[0] == {}
    for count, residual in enumerate(given[1:], 1):
        assert residual["w"].tolist() == [[float(count)] * 3] * 2
