"""What a command may ask of a run: nothing but a candidate, other weights, epochs, a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.training.trainer_messages import CheckpointWritten
from edged.engines import open_engine
from edged.engines.onnx.fields import parameters_in
from edged.engines.portable.engine import PortableEngine
from edged.errors import ModelError
from tests.device.learning_rig import Workshop, losses, model_bytes, task, weights
from tests.installed import ENGINES

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


def test_a_dry_run_leaves_a_candidate_and_nothing_else(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(200))
    shop.trainee().run(shop.request())
    shop.feed(*task(100, seed=1))
    before = sorted(shop.checkpoints.numbers())
    dry = shop.trainee().run(shop.request("command", dry_run=True))
    assert (dry.generation, dry.steps, dry.samples > 50) == (None, 60, True)
    assert sorted(shop.checkpoints.numbers()) == before
    real = shop.trainee().run(shop.request("command"))
    assert model_bytes(real) == model_bytes(dry), "it goes on from where the dry run began, and does the same"


def test_a_run_from_the_bundle_begins_with_its_weights_and_keeps_the_position(
    tmp_path: Path, bundle: Bundle
) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(200))
    first = shop.trainee().run(shop.request())
    engine = PortableEngine(bundle)
    fresh = weights(engine)
    shop.trainee(engine, base="bundle")
    assert weights(engine) == fresh
    again = shop.trainee(base="bundle").run(shop.request("command", base="bundle"))
    assert (again.samples, again.consumed) == (0, first.consumed)
    assert again.remembered == first.remembered
    assert losses(again)[0] > 2 * losses(first)[1], "what was learned is not in its weights"


@pytest.mark.parametrize("name", ENGINES)
def test_the_champions_weights_are_those_of_its_file(
    tmp_path: Path, bundles: dict[str, Bundle], name: str
) -> None:
    bundle = bundles[name]
    shop = Workshop(tmp_path, bundle, average=0.0)
    shop.feed(*task(200))
    engine = open_engine(name, bundle)
    result = shop.trainee(engine).run(shop.request())
    found = parameters_in(Path(result.candidate) / "model.onnx", (*bundle.trainable, *bundle.frozen))
    assert {name: value.tobytes() for name, value in found.items()} == weights(engine)
    other = open_engine(name, bundle)
    shop.champion = result.candidate
    shop.trainee(other, base="champion")
    assert weights(other) == weights(engine)
    with pytest.raises(ModelError, match="no parameter 'nothing'"):
        parameters_in(Path(result.candidate) / "model.onnx", ["nothing"])


def test_epochs_are_passes_over_the_new_samples(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, new_share=0.5)
    shop.feed(*task(320))
    first = shop.trainee().run(shop.request("command", epochs=2))
    assert first.steps == np.ceil(2 * first.samples / 32), "nothing is remembered yet: whole batches are new"
    shop.feed(*task(100, seed=1))
    second = shop.trainee().run(shop.request("command", epochs=1))
    assert second.steps == np.ceil(second.samples / (32 * 0.5))


def test_a_checkpoint_is_written_when_it_is_wanted(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, checkpoint_every=1000)
    shop.feed(*task(200))
    wanted = iter([False, True])
    shop.trainee(wanted=lambda: next(wanted, False)).run(shop.request())
    steps = [told.step for told in shop.reported(CheckpointWritten)]
    assert len(steps) == 3
    assert 0 < steps[1] < 60, "between the run's beginning and its end"
