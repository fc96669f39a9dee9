"""The portable engine goes where the native one goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from tests.bundles.engines_agree.gradients import assert_equal, gradients
from tests.engines.comparison import apart
from tests.installed import needs_native
from tests.zoo import BOTH, ZOO

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle
    from tests.engines.conftest import ZooBundle
    from tests.zoo import Entry

pytestmark = needs_native

SHARED = [entry for entry in ZOO.values() if entry.engines == BOTH]

shared = pytest.mark.parametrize("entry", SHARED, ids=lambda entry: entry.name)
optimizers = pytest.mark.parametrize("optimizer", ["adamw", "sgd"])


def started(bundles: list[Bundle]) -> list[Engine]:
    engines = [open_engine(bundle.engine, bundle) for bundle in bundles]
    for engine in engines:
        engine.begin(LearningRate(0.002, warmup=5, total=400))
    return engines


@shared
@pytest.mark.parametrize("rows", [1, 7])
def test_gradients_are_equal(entry: Entry, rows: int, zoo_bundle: ZooBundle) -> None:
    """Within 1e-5 of the largest gradient and the spacing of the weights they are read from."""
    bundles = [zoo_bundle(entry, "sgd", engine) for engine in BOTH]
    x, y = entry.batch(bundles[0], rows)
    assert_equal(*(gradients(bundle, x, y) for bundle in bundles))


@shared
@optimizers
def test_parameters_are_equal_after_1_10_and_200_steps(
    entry: Entry, optimizer: str, zoo_bundle: ZooBundle
) -> None:
    bundles = [zoo_bundle(entry, optimizer, engine) for engine in BOTH]
    engines, found = started(bundles), {}
    for step in range(1, 201):
        batch = entry.batch(bundles[0], (1, 16, 32)[step % 3], seed=step)
        native, portable = (engine.step(*batch) for engine in engines)
        assert portable.loss == pytest.approx(native.loss, rel=1e-4, abs=1e-6)
        if step in (1, 10, 200):
            found[step] = apart(engines[1], engines[0])
    assert found[1] < 1e-5
    assert found[10] < 1e-4
    assert found[200] < 1e-4
