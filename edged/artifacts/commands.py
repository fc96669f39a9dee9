"""The offline commands: from files and words on the command line to a model or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.artifacts.build import build
from edged.artifacts.conform import read_model
from edged.artifacts.graphs import shape_of
from edged.artifacts.inspect import inspect
from edged.artifacts.standardise import Statistics
from edged.artifacts.templates import autoencoder, mlp
from edged.domain.standardise import RunningMoments
from edged.errors import ConfigError
from edged.storage.files import publish_file
from edged.storage.recorded import read_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from edged.artifacts.optimizers import Optimizer

KINDS = ("mlp", "autoencoder")


def new_model(
    kind: str, *, inputs: int, outputs: int | None, hidden: str, out: Path, seed: int
) -> onnx.ModelProto:
    """Write a small network to `out`.

    `hidden` are layer sizes such as `64,32`; an autoencoder takes the last one as its code.

    Raises
    ------
    ConfigError
        When the kind is unknown, sizes are no numbers, or `outputs` is missing.
    """
    sizes = _sizes(hidden)
    if kind == "mlp":
        if outputs is None:
            raise ConfigError("an mlp needs --outputs", where="--outputs", remedy="classes or targets")
        model = mlp(inputs, outputs, sizes, seed=seed)
    elif kind == "autoencoder":
        code = sizes[-1] if sizes else max(1, inputs // 2)
        model = autoencoder(inputs, sizes[:-1], code, seed=seed)
    else:
        raise ConfigError(f"unknown kind {kind!r}", where="model new", remedy=f"one of {', '.join(KINDS)}")
    publish_file(out, model.SerializeToString(deterministic=True))
    return model


def _sizes(hidden: str) -> list[int]:
    try:
        sizes = [int(part) for part in hidden.split(",") if part.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise ConfigError(f"{hidden!r} is no list of layer sizes", where="--hidden", remedy="such as 64,32")
    return sizes


def build_from_file(
    model: Path,
    out: Path,
    *,
    loss: str,
    optimizer: Optimizer,
    train: Sequence[str],
    freeze: Sequence[str],
    data: Path | None,
    standardise: bool,
    engine: str,
) -> dict[str, Any]:
    """Build the bundle `out` from a model file; what `inspect` says of it, and `notes` on the way.

    `loss` is a name, or the file of a loss model where it ends in `.onnx`.
    With `standardise` the graph gets input statistics (and for value losses target statistics):
    those of `data`, or neutral ones that the first training run fits. Without `data`, inputs of more axes
    than (batch, n) are left as they are, with a note.

    Raises
    ------
    EdgedError
        One line on what cannot be built and why.
    """
    notes: list[str] = []
    if standardise and data is None and (rank := len(shape_of(read_model(model).graph.input[0]))) != 2:
        standardise = False
        notes.append(f"inputs are taken as they are: standardisation is for (batch, n), not for {rank} axes")
    statistics = _statistics(model, loss, data) if standardise else None
    given = Path(loss) if loss.endswith(".onnx") else loss
    built = build(
        model, out, loss=given, optimizer=optimizer, train=train, freeze=freeze, standardise=statistics,
        engine=engine, note=notes.append,
    )  # fmt: skip
    return inspect(built.path) | {"notes": notes}


def _statistics(path: Path, loss: str, data: Path | None) -> Statistics:
    model = read_model(path)
    width, outputs = (_row(value, path) for value in (model.graph.input[0], model.graph.output[0]))
    reconstruct = model.graph.output[0].name == "reconstruction"
    values = loss in ("mse", "l1")
    if data is None:
        return Statistics.identity(
            width, outputs if values and not reconstruct else None, reconstruct=reconstruct
        )
    recorded = read_stream(data)
    if recorded.x.shape[1] != width:
        raise ConfigError(
            f"the data has {recorded.x.shape[1]} features, the model takes {width}", where=str(data)
        )
    given = dict(zip(("mean", "scale"), _moments(recorded.x), strict=True))
    if values and not reconstruct and recorded.y is not None:
        y = np.asarray(recorded.y, np.float32).reshape(len(recorded.x), -1)
        given |= dict(zip(("target_mean", "target_scale"), _moments(y), strict=True))
    return Statistics.of(given, reconstruct=reconstruct)


def _row(value: onnx.ValueInfoProto, path: Path) -> int:
    size = 1
    for axis in value.type.tensor_type.shape.dim[1:]:
        if axis.dim_value < 1:
            raise ConfigError(
                f"{value.name!r} has an axis of unknown length besides the batch",
                where=str(path),
                remedy="export the model with fixed sizes, or use --no-standardise",
            )
        size *= axis.dim_value
    return size


def _moments(values: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[list[float], list[float]]:
    moments = RunningMoments(len(values))
    moments.update(values)
    mean, scale = moments.scale()
    return mean.tolist(), scale.tolist()
