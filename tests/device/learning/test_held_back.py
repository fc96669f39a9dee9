"""What holds training back, as it is configured: with one value a run is due, with the other it waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.domain.training.guards import Conditions
from tests.device.trainers import Desk, Plant

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

HARD = Conditions(
    minute=720, day=7, temperature_c=80.0, on_battery=True, battery_percent=25.0,
    serving_p99=0.02,
)  # fmt: skip
EASY: dict[str, Any] = {"new_labels": 100}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quiet", "11:00-13:00"),
        ("max_temperature", 70.0),
        ("on_battery", False),
        ("on_battery", 30.0),
        ("serving_p99", "10ms"),
        ("daily_minutes", 5.0),
    ],
)
def test_a_run_waits_for_what_is_configured(tmp_path: Path, bundle: Bundle, key: str, value: Any) -> None:
    decided = []
    for number, chosen in enumerate(({}, {key: value})):
        plant = Plant(tmp_path / str(number), bundle, **EASY | chosen)
        desk = Desk(plant, conditions=HARD)
        for _ in range(2):
            desk.scheduler.spend(180.0)
        decided.append((desk.scheduler.due(), len(desk.scheduler.waiting_for)))
        desk.scheduler.client.close()
        desk.registry.close()
        plant.log.close()
    assert decided == [("labels", 0), (None, 1)]


def test_a_run_waits_for_a_board_in_trouble(tmp_path: Path, bundle: Bundle) -> None:
    desk = Desk(Plant(tmp_path, bundle, **EASY), conditions=replace(HARD, board=("throttled",)))
    assert (desk.scheduler.due(), desk.scheduler.waiting_for) == (None, ("the board: throttled",))
    desk.scheduler.client.close()
