"""Bundles for tests, of models in memory or in a file, with the options of a request as words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.bundles import build as building
from edged.bundles.losses.objective import parse
from edged.bundles.request import BuildRequest
from edged.domain.training.optimizers import Optimizer

if TYPE_CHECKING:
    import onnx

    from edged.bundles.build import BuildCheck
    from edged.bundles.losses.objective import Loss
    from edged.storage.models.bundles import Bundle


def request(
    model: onnx.ModelProto | Path,
    *,
    loss: str | Loss = "mse",
    optimizer: str | Optimizer = "adamw",
    **options: Any,
) -> BuildRequest:
    """A request in which loss and optimizer may be names; without a word of it nothing is standardised."""
    return BuildRequest(
        model=model,
        loss=parse(loss) if isinstance(loss, str) else loss,
        optimizer=Optimizer.of(optimizer) if isinstance(optimizer, str) else optimizer,
        **{"standardise": False, **options},
    )


def build(
    model: onnx.ModelProto | Path,
    out: Path,
    *,
    add_note: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Bundle:
    """The bundle of a request."""
    return building.build(request(model, **options), out, add_note)


def small_classifier(out: Path) -> Bundle:
    """A network of six features and three classes, with neutral standardisation, for the portable engine."""
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    neutral = Statistics.identity(6)
    return build(mlp(6, 3, (16,)), out, loss="cross_entropy", standardise=neutral, engine="portable")


def check(model: onnx.ModelProto | Path, **options: Any) -> BuildCheck:
    """What would become of a request."""
    return building.check(request(model, **options))
