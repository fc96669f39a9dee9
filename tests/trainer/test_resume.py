"""A run that was stopped, or lost its newest checkpoint, is taken up again exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.training.trainer_messages import DamagedCheckpoint, LogLine
from edged.engines.portable.engine import PortableEngine
from edged.errors import NonFiniteError
from edged.trainer.steps import InterruptedRunError
from tests.building import build
from tests.device.learning_rig import Workshop, after, model_bytes, task, weights

if TYPE_CHECKING:
    from edged.domain.protocols import StepResult
    from edged.storage.models.bundles import Bundle

SETTINGS: list[dict[str, Any]] = [
    {},
    {"schedule": "linear", "warmup": 10, "accumulate": 2},
    {"replay": 40, "checkpoint_every": 7},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "schedule", "replay"])
@pytest.mark.parametrize("stop", [1, 31, 59])
def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, bundle: Bundle, settings: dict[str, Any], stop: int
) -> None:
    ends = []
    for name, stops in (("straight", []), ("stopped", [stop, 1])):
        shop = Workshop(tmp_path / name, bundle, **settings)
        for seed in range(2):
            shop.feed(*task(150, seed))
            for steps in stops if seed else []:
                with pytest.raises(InterruptedRunError) as caught:
                    shop.trainee(stopping=after(steps)).run(shop.request())
                assert caught.value.exit_code == 130
                shop.feed(*task(20, 99))  # what comes in between belongs to the next run
            engine = PortableEngine(bundle)
            result = shop.trainee(engine).run(shop.request())
        ends.append((weights(engine), result.memory, result.consumed, model_bytes(result)))
    assert ends[0] == ends[1]


def test_a_resumed_run_is_known_by_its_new_number(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(150))
    with pytest.raises(InterruptedRunError, match=r"step 1\d of 60"):
        shop.trainee(stopping=after(20)).run(shop.request())
    result = shop.trainee().run(shop.request("schedule"))
    assert (result.run, result.trigger, result.steps) == (2, "schedule", 60)
    assert result.candidate.name == "2"


class OnceNotFinite(PortableEngine):
    """Its first look at the weights finds them destroyed."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.careful: list[bool] = []
        self._found = False

    def check(self) -> None:
        if not self._found:
            self._found = True
            raise NonFiniteError("weights are no longer finite: layer1.weight")
        super().check()

    def step(self, x: Any, y: Any, *, careful: bool = False, **more: Any) -> StepResult:
        self.careful.append(careful)
        return super().step(x, y, careful=careful, **more)


def test_destroyed_weights_send_the_run_back_to_its_checkpoint(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(150))
    engine = OnceNotFinite(bundle)
    result = shop.trainee(engine).run(shop.request())
    assert engine.careful == [False] * 32 + [True] * 60
    assert "going back to generation 1" in shop.reported(LogLine)[0].what
    straight = Workshop(tmp_path / "other", bundle)
    straight.feed(*task(150))
    assert model_bytes(straight.trainee().run(straight.request())) == model_bytes(result)


def test_a_resumed_run_keeps_its_number_when_it_goes_back(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(150))
    with pytest.raises(InterruptedRunError):
        shop.trainee(stopping=after(20)).run(shop.request())
    result = shop.trainee(OnceNotFinite(bundle)).run(shop.request())
    assert result.run == 2
    assert result.candidate.name == "2"


def test_a_damaged_checkpoint_is_passed_over_and_reported(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, checkpoint_every=20)
    shop.feed(*task(150))
    straight = shop.trainee().run(shop.request())
    newest, before = shop.checkpoints.numbers()[:-3:-1]
    file = tmp_path / "checkpoints" / str(newest) / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    engine = PortableEngine(bundle)
    trainee = shop.trainee(engine)
    assert shop.reported(DamagedCheckpoint) == [DamagedCheckpoint(newest)]
    assert shop.learner.state.consumed == 0, "the one before was made within the run"
    again = trainee.run(shop.request())
    assert model_bytes(again) == model_bytes(straight)
    assert again.generation is not None
    assert again.generation > newest > before


def test_checkpoints_of_another_bundle_are_left_alone(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(150))
    shop.trainee().run(shop.request())
    other = build(mlp(5, 3, (16,), seed=5), tmp_path / "other", loss="cross_entropy",
                  standardise=Statistics.identity(5))  # fmt: skip
    shop.bundle = other
    engine = PortableEngine(other)
    trainee = shop.trainee(engine)
    assert weights(engine) == weights(PortableEngine(other))
    assert "another bundle" in shop.reported(LogLine)[0].what
    assert shop.learner.state.consumed == 0
    result = trainee.run(shop.request())
    assert result.samples == shop.log.labelled_since(0), "everything is new to it"


def test_a_new_trainee_goes_on_where_the_last_run_ended(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(150))
    first = PortableEngine(bundle)
    end = shop.trainee(first).run(shop.request())
    second = PortableEngine(bundle)
    shop.trainee(second)
    assert weights(second) == weights(first)
    assert shop.learner.state.consumed == end.consumed
    assert not np.array_equal(
        second.parameters()["layer1.weight"], PortableEngine(bundle).parameters()["layer1.weight"]
    )
