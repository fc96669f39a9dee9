"""Bundles and batches to compare a device with the machine that prepared them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from tests.building import build
from tests.stock.losses import losses
from tests.zoo import ZOO

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.zoo import Entry

STEPS, ROWS, FIRST = 200, 16, 1000


def classifier(path: Path, features: int = 8, classes: int = 2) -> Bundle:
    """A small network for a stream of `features` values and `classes` classes."""
    model = mlp(features, classes, (32, 16))
    statistics = Statistics.identity(features)
    return build(model, path, loss="cross_entropy", standardise=statistics)


def references(folder: Path) -> dict[str, list[float]]:
    """Write every bundle of the zoo with its batches into `folder`; the losses on this machine.

    They are the native engine's, and the portable one's where a network is for it alone. Two machines round
    differently: where the input of a ReLU comes within 1e-6 of 0 they may take different sides, and go apart
    by more than rounding from there. With these batches none does.
    """
    made = [(entry, "adamw") for entry in ZOO.values()] + [(ZOO["mlp"], "sgd")]
    return {f"{entry.name}-{optimizer}": _reference(folder, entry, optimizer) for entry, optimizer in made}


def _reference(folder: Path, entry: Entry, optimizer: str) -> list[float]:
    name = f"{entry.name}-{optimizer}"
    bundle, batches = entry.bundle(folder / name, optimizer=optimizer), folder / f"{name}.npz"
    x, y = zip(*(entry.batch(bundle, ROWS, seed) for seed in range(FIRST, FIRST + STEPS)), strict=True)
    np.savez(batches, x=np.stack(x), y=np.stack(y))
    engine = entry.engines[0]
    if engine != "portable":
        beside = folder.with_name(f"{folder.name}-{engine}") / name
        beside.parent.mkdir(exist_ok=True)
        bundle = entry.bundle(beside, optimizer=optimizer, engine=engine)
    return losses(engine, bundle.path, batches)


def check(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    """Fail unless all losses are the expected ones, to 1e-4 of each."""
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert len(found[name]) == STEPS
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-6, err_msg=name)


def learned(expected: dict[str, list[float]]) -> bool:
    """Whether the comparison means anything: every loss has gone down."""
    return all(np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10]) for losses in expected.values())
