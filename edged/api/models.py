"""Networks and bundles: what a device needs to train a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.api.inputs import config_of, data_of, empty_directory
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.api.inputs import Configuration, PathOrText


@dataclass(frozen=True)
class BuiltBundle:
    """A bundle that was built.

    Attributes
    ----------
    path
        Its directory, for `model.bundle`.
    engine
        Engine that it was built for: `portable` or `native`.
    trainable, frozen
        Number of values in parameters that are trained, and that are not.
    bytes
        Size of its files.
    fingerprint
        SHA-256 over its files, in hexadecimal.
    notes
        Notes of the build, one line each.
    """

    path: Path
    engine: str
    trainable: int
    frozen: int
    bytes: int
    fingerprint: str
    notes: tuple[str, ...]


def new_model(
    kind: str,
    out: PathOrText,
    *,
    inputs: int | Sequence[int],
    outputs: int | None = None,
    hidden: Sequence[int] | None = None,
    seed: int = 0,
) -> Path:
    """Write a small untrained network as an ONNX file and return its path.

    Parameters
    ----------
    kind
        `mlp`, `autoencoder`, `cnn1d`, `cnn2d` or `gru`.
    inputs
        Number of features; `(readings, channels)` of a window; `(channels, height, width)` of an image.
    outputs
        Number of classes or targets; none for an autoencoder.
    hidden
        Layer sizes; None: those of the kind.
    seed
        Seed of the initial weights.

    Raises
    ------
    EdgedError
        ConfigError when kind and sizes do not fit, or `out` exists.
    """
    from edged import bundles

    bundles.require()
    from edged.bundles.new_model import new_model as write_model

    path = Path(out)
    if path.exists():
        raise ConfigError("exists already", where=str(path), remedy="name a new file")
    sizes = (inputs,) if isinstance(inputs, int) else tuple(inputs)
    write_model(kind, inputs=sizes, outputs=outputs, hidden=hidden, out=path, seed=seed)
    return path


def build(
    model: PathOrText,
    out: PathOrText,
    *,
    loss: str,
    optimizer: str = "adamw",
    optimizer_options: Mapping[str, float] | None = None,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    data: Any = None,
    config: Configuration | None = None,
    stream: str | None = None,
    standardise: bool | None = None,
    engine: str = "portable",
) -> BuiltBundle:
    """Build a bundle from an ONNX model, as `edged artifacts build`.

    Parameters
    ----------
    model
        ONNX file.
    out
        New directory.
    loss
        Such as `cross_entropy` or `mse`, or a function in a file: see [losses](losses.md).
    optimizer, optimizer_options
        Name, and options such as `{"weight_decay": 0.01}`.
    train, freeze
        Globs of parameter names that are trained, or not.
    data
        Recorded data, from which the standardisation of the inputs is computed; None: the first training run
        computes it.
    config, stream
        Configuration that has the names of features and classes, and the name of its stream.
    standardise
        Whether to put a standardisation in front; None: for networks of `new_model` alone.
    engine
        `portable`, or `native` where onnxruntime-training is installed.

    Raises
    ------
    EdgedError
        BundleError when the model cannot be trained, with the node; ConfigError for wrong arguments.
    """
    from edged import bundles, logs

    bundles.require()
    logs.configure_library()
    from edged.bundles.build import build as build_bundle
    from edged.bundles.graph.naming import Naming
    from edged.bundles.inspect import inspect
    from edged.bundles.losses.objective import parse
    from edged.bundles.request import BuildRequest
    from edged.domain.training.optimizers import Optimizer

    path = empty_directory(out)
    shape = None if config is None else config_of(config, stream).stream
    request = BuildRequest(
        model=Path(model),
        loss=parse(loss),
        optimizer=Optimizer.of(optimizer, **(optimizer_options or {})),
        train=train,
        freeze=freeze,
        engine=engine,
        standardise=standardise,
        data=None if data is None else data_of(data),
        stream=shape,
        naming=Naming() if shape is None else Naming.of(shape.to_schema()),
    )
    notes: list[str] = []
    build_bundle(request, path, notes.append)
    built = inspect(path)
    return BuiltBundle(
        path,
        built.engine,
        built.trainable_size,
        built.frozen_size,
        built.bytes,
        built.fingerprint,
        tuple(notes),
    )
