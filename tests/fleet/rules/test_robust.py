"""Devices whose updates point against those of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.training.weight_deltas import Coding, code
from edged.fleet.rules import robust
from edged.fleet.rules.aggregation import AdmittedUpdate, Aggregate
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.robust import Matrix, UpdateDirections, trimmed_mean
from edged.mqtt.weight_encoding import compress, decompress
from tests.fleet.matrix import InMemoryMatrix

if TYPE_CHECKING:
    import pytest

SIZE = 700  # three blocks of columns
LAYOUT = Layout.of({"w": np.zeros((7, 100), np.float32)})


def updates(count: int, opposed: int, seed: int = 0, noise: float = 0.5) -> list[AdmittedUpdate]:
    """Devices that agree but for noise; the last have turned their updates around."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(9).normal(size=SIZE)
    rows = truth + rng.normal(scale=noise, size=(count, SIZE))
    rows[count - opposed :] *= -1
    return [
        AdmittedUpdate(
            f"d{n}", 10 + n, 1.0, LAYOUT.row(code(LAYOUT.weights(row.astype(np.float32)), Coding("int8")))
        )
        for n, row in enumerate(rows)
    ]


def aggregate(given: list[AdmittedUpdate], told: UpdateDirections | None) -> Aggregate:
    reducer = Matrix(trimmed_mean(0.1), InMemoryMatrix(), directions=told)
    reducer.begin(LAYOUT, len(given))
    for each in given:
        reducer.add(each)
    return reducer.finish()


def test_updates_that_were_turned_around_are_as_if_they_had_not_come() -> None:
    given = updates(20, 3)
    found, honest = aggregate(given, UpdateDirections({})), aggregate(given[:17], None)
    assert found.left_out == ("d17", "d18", "d19")
    np.testing.assert_array_equal(found.change, honest.change)
    assert (found.devices, found.samples) == (17, honest.samples)


def test_without_them_every_update_counts_as_ever() -> None:
    given = updates(20, 0)
    found, plain = aggregate(given, UpdateDirections({})), aggregate(given, None)
    assert (found.left_out, plain.left_out, plain.memory) == ((), (), {})
    np.testing.assert_array_equal(found.change, plain.change)


def test_what_was_seen_in_earlier_rounds_counts() -> None:
    first = aggregate(updates(20, 2), UpdateDirections({}))
    memory, _ = decompress(compress(first.memory, {}), 1 << 20)
    later = updates(20, 0, seed=1, noise=20.0)  # nobody could be told from the others by these
    assert aggregate(later, UpdateDirections(memory)).left_out == ("d18", "d19")
    stranger = [*later[:18], replace(later[18], device="new"), later[19]]
    assert aggregate(stranger, UpdateDirections(memory)).left_out == ("d19",)


def test_where_not_even_half_would_be_left_all_count() -> None:
    told = UpdateDirections({})
    told.saw([f"d{n}" for n in range(20)], np.where(np.arange(20) < 10, -5.0, 5.0))
    assert told.opposed([f"d{n}" for n in range(20)]).sum() == 10
    assert aggregate(updates(20, 0), told).left_out == ()


def test_an_update_of_nothing_points_nowhere() -> None:
    given = [*updates(4, 0), AdmittedUpdate("still", 5, 1.0, LAYOUT.row({}))]
    told = UpdateDirections({})
    assert aggregate(given, told).left_out == ()
    assert not told.opposed(["still"]).any()


def test_devices_that_sent_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "DEVICES", 2)
    told = UpdateDirections({})
    told.saw(["a", "b"], np.array([-1.0, -1.0]))
    told.saw(["a", "c"], np.array([-1.0, -1.0]))
    assert UpdateDirections(told.dump()).opposed(["a", "b", "c"]).tolist() == [True, False, True]
