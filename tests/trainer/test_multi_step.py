"""A run that makes several steps in one call comes to the same as one that makes them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.domain.stream.schema import Schema
from edged.domain.training.trainer_messages import BadSamples
from edged.engines.portable.engine import TOGETHER, PortableEngine
from edged.trainer.steps import InterruptedRunError
from tests.device.learning_rig import Workshop, after, model_bytes, task, weights

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.storage.models.bundles import Bundle

REGRESS = Schema((), 5, "regress")


class OneByOne(PortableEngine):
    """The same engine, making one step a call."""

    @property
    def together(self) -> int:
        return 1


def end(shop: Workshop, engine: PortableEngine, **options: Any) -> tuple[Any, ...]:
    result = shop.trainee(engine, **options).run(shop.request())
    told = {key: value for key, value in result.to_json().items() if key not in ("seconds", "candidate")}
    return weights(engine), told, model_bytes(result), shop.reported(BadSamples)


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 75, "max_steps": 75},
        {"replay": 40, "checkpoint_every": 7},
        {"schedule": "linear", "warmup": 10, "batch": 5},
        {"accumulate": 2},
    ],
    ids=str,
)
def test_weights_losses_and_accounts_are_the_same(
    tmp_path: Path, bundle: Bundle, settings: dict[str, Any]
) -> None:
    assert PortableEngine(bundle).together == TOGETHER
    ends = []
    for kind in (OneByOne, PortableEngine):
        shop = Workshop(tmp_path / kind.__name__, bundle, **settings)
        for seed in range(2):
            shop.feed(*task(150, seed))
            ends.append(end(shop, kind(bundle)))
    assert ends[:2] == ends[2:]


def test_bad_samples_are_found_and_left_out_the_same_way(tmp_path: Path) -> None:
    bundle = build(mlp(5, 1, (8,)), tmp_path / "b", loss="mse")
    ends = []
    for kind in (OneByOne, PortableEngine):
        shop = Workshop(tmp_path / kind.__name__, bundle, REGRESS, max_steps=100, steps=100)
        x, _ = task(200)
        y: list[LabelValue | None] = x[:, 0].tolist()
        y[50] = y[60] = y[70] = 3e38
        shop.feed(x, y)
        ends.append(end(shop, kind(bundle)))
    assert ends[0] == ends[1]
    assert ends[0][1]["skipped"] >= 1


def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path, bundle: Bundle) -> None:
    ends = []
    for name, stops in (("straight", 0), ("stopped", 2)):
        shop = Workshop(tmp_path / name, bundle, steps=90, max_steps=90)
        shop.feed(*task(150))
        for _ in range(stops):
            with pytest.raises(InterruptedRunError, match=r"step (8|16) of 90"):
                shop.trainee(PortableEngine(bundle), stopping=after(1)).run(shop.request())
        engine = PortableEngine(bundle)
        result = shop.trainee(engine).run(shop.request())
        ends.append((weights(engine), model_bytes(result)))
    assert ends[0] == ends[1]
