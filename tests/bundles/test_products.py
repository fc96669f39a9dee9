"""What the largest operator of a network costs, and how many threads the engine makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edged.bundles.graph.templates import mlp
from edged.engines.portable.description import SHARED_FROM, Description
from tests.building import build
from tests.zoo import ZOO


def test_a_dense_layer_costs_its_weights(tmp_path: Path) -> None:
    bundle = build(mlp(64, 6, (128, 32)), tmp_path / "b", loss="cross_entropy")
    assert Description.of(bundle).largest_product == 64 * 128


@pytest.mark.parametrize(
    ("name", "expected"),
    # One step of a recurrent layer, and a whole picture of a convolution.
    [("lstm", 4 * 64 * (9 + 64)), ("gru", 3 * 64 * (9 + 64)), ("cnn2d", 16 * 14 * 14 * 32 * 9)],
)
def test_layers_of_other_kinds(tmp_path: Path, name: str, expected: int) -> None:
    bundle = build(ZOO[name].make(False), tmp_path / "b", loss=ZOO[name].loss)
    assert Description.of(bundle).largest_product == expected


def test_small_operators_run_on_one_thread_and_large_ones_on_all(tmp_path: Path) -> None:
    told = Description.of(ZOO["mlp"].bundle(tmp_path / "mlp"))
    assert told.largest_product is not None
    assert told.largest_product < SHARED_FROM
    assert told.threads(4) == 1
    assert replace(told, largest_product=SHARED_FROM).threads(4) == 4


def test_a_bundle_of_before_uses_what_it_is_given(tmp_path: Path) -> None:
    told = Description.of(ZOO["mlp"].bundle(tmp_path / "mlp"))
    assert replace(told, largest_product=None).threads(4) == 4
