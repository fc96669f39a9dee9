"""The portable engine goes where the native one goes, and each continues what the other saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from tests.bundles.engines_agree.gradients import assert_equal, gradients
from tests.engines.comparison import apart, state
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


def started(bundle: Bundle, names: tuple[str, ...] = BOTH) -> list[Engine]:
    engines = [open_engine(name, bundle) for name in names]
    for engine in engines:
        engine.begin(LearningRate(0.002, warmup=5, total=400))
    return engines


@shared
@pytest.mark.parametrize("rows", [1, 7])
def test_gradients_are_equal(entry: Entry, rows: int, zoo_bundle: ZooBundle) -> None:
    """Within 1e-5 of the largest gradient and the spacing of the weights they are read from."""
    bundle = zoo_bundle(entry, "sgd")
    x, y = entry.batch(bundle, rows)
    assert_equal(*(gradients(bundle, engine, x, y) for engine in BOTH))


@shared
@optimizers
def test_parameters_are_equal_after_1_10_and_200_steps(
    entry: Entry, optimizer: str, zoo_bundle: ZooBundle
) -> None:
    bundle = zoo_bundle(entry, optimizer)
    engines, found = started(bundle), {}
    for step in range(1, 201):
        batch = entry.batch(bundle, (1, 16, 32)[step % 3], seed=step)
        native, portable = (engine.step(*batch) for engine in engines)
        assert portable.loss == pytest.approx(native.loss, rel=1e-4, abs=1e-6)
        if step in (1, 10, 200):
            found[step] = apart(engines[1], engines[0])
    assert found[1] < 1e-5
    assert found[10] < 1e-4
    assert found[200] < 1e-4


@shared
@optimizers
@pytest.mark.parametrize("names", [BOTH, BOTH[::-1]], ids="-to-".join)
def test_a_checkpoint_of_one_engine_goes_on_in_the_other(
    names: tuple[str, str], entry: Entry, optimizer: str, zoo_bundle: ZooBundle, tmp_path: Path
) -> None:
    bundle = zoo_bundle(entry, optimizer)
    first, second = started(bundle, names)
    for seed in range(10):
        first.step(*entry.batch(bundle, 16, seed))
    (tmp_path / "there").mkdir()
    first.save(tmp_path / "there")
    second.restore(tmp_path / "there")
    assert state(second) == state(first)
    for seed in range(10, 20):
        batch = entry.batch(bundle, 16, seed)
        assert second.step(*batch).loss == pytest.approx(first.step(*batch).loss, rel=1e-5, abs=1e-6)
    assert apart(second, first) < 1e-5
    # And back again, with moments, number of updates and rate.
    (tmp_path / "back").mkdir()
    second.save(tmp_path / "back")
    first.restore(tmp_path / "back")
    assert state(first) == state(second)
    for seed in range(20, 25):
        for engine in (first, second):
            engine.step(*entry.batch(bundle, 16, seed))
    assert apart(second, first) < 1e-5


@shared
@pytest.mark.parametrize("name", BOTH)
def test_a_checkpoint_before_the_first_step_is_a_beginning(
    name: str, entry: Entry, zoo_bundle: ZooBundle, tmp_path: Path
) -> None:
    bundle = zoo_bundle(entry, "adamw")
    engine, other = open_engine(name, bundle), open_engine("portable", bundle)
    engine.save(tmp_path)
    other.restore(tmp_path)
    assert state(other) == state(engine)
