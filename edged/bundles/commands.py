"""The offline commands: from files and words on the command line to a model or a bundle."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edged.bundles.build import NAMELESS, build, check_engine
from edged.bundles.export.parameters import get
from edged.bundles.graph.edit import shape_of
from edged.bundles.graph.naming import Naming
from edged.bundles.graph.network import UNTRAINED
from edged.bundles.graph.templates import autoencoder, cnn1d, cnn2d, gru, mlp
from edged.bundles.inspect import BundleReport, inspect
from edged.bundles.losses.objective import Given, keeps_all_outputs, parse
from edged.bundles.preflight import Obstacle, lacking, obstacles
from edged.bundles.source.axes import fix_sequence, refuse_open
from edged.bundles.source.normalise import conform, read_model
from edged.bundles.source.standardise import Statistics, is_standardised, scaling_in_front
from edged.bundles.source.trainable import select
from edged.config import StreamConfig
from edged.domain.json_fields import JsonObject
from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.training.message import Message
from edged.domain.training.optimizers import Optimizer
from edged.errors import BundleError, ConfigError
from edged.storage.files.atomic import publish_file
from edged.storage.models.bundles import MEASURING
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.reader import read_stream
from edged.storage.recordings.rows import Recording
from edged.storage.recordings.samples import read_recording

if TYPE_CHECKING:
    import onnx


_Shape = TypeVar("_Shape", tuple[int, int], tuple[int, int, int])

_AS_IT_IS = (
    "inputs are taken as they are: the network may be trained already; --standardise puts a standardisation"
    " in front, for one that is to be trained from the beginning"
)
_STANDARDISED = "the standardisation in front of the network stays as it is"
HIDDEN = {"mlp": "64,32", "autoencoder": "64,32", "cnn1d": "32,32", "cnn2d": "16,32", "gru": "64"}


@dataclass(frozen=True)
class Inputs:
    """What a model takes: a row of numbers, `(rows, channels)` of a window, `(channels, height, width)`."""

    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Number of features of a sample."""
        return math.prod(self.sizes)

    @property
    def window(self) -> tuple[int, int] | None:
        """Rows and channels; None where samples are no windows."""
        return (self.sizes[0], self.sizes[1]) if len(self.sizes) == 2 and self.sizes[0] > 1 else None

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width, one channel where none is named; None where samples are no images."""
        if len(self.sizes) < 2:
            return None
        *channels, height, width = self.sizes
        return (channels[0] if channels else 1, height, width)

    @classmethod
    def parse(cls, inputs: str | None, window: int | None, channels: int | None) -> Inputs:
        """From `--inputs 9`, `--inputs 128x9`, or `--window 128 --channels 9`; ConfigError otherwise."""
        if inputs is None and window is not None and channels is not None:
            return cls((window, channels))
        sizes = [] if inputs is None else inputs.lower().split("x")
        if window is not None or channels is not None or not 1 <= len(sizes) <= 3:
            raise ConfigError(
                "expected the size of the input", where="--inputs",
                remedy="such as --inputs 9; for windows --inputs 128x9, or --window 128 --channels 9;"
                " for images --inputs 3x32x32",
            )  # fmt: skip
        if not all(size.isdecimal() and int(size) >= 1 for size in sizes):
            raise ConfigError(f"{inputs!r} is no size", where="--inputs", remedy="such as 9, or 128x9")
        return cls(tuple(map(int, sizes)))


def new_model(
    kind: str,
    *,
    inputs: Inputs,
    outputs: int | None,
    hidden: str | None,
    out: Path,
    seed: int,
    features: str = "",
) -> onnx.ModelProto:
    """Write a small network to `out`.

    `hidden` are layer sizes such as `64,32`, those of the kind when absent; an autoencoder takes the last one
    as its code. `features` are names such as `statistics,spectrum`, of what an mlp sees instead of a window.

    Raises ConfigError when the kind is unknown, sizes are no numbers, `outputs` is missing, or the kind is
    for windows.
    """
    if kind not in HIDDEN:
        raise ConfigError(f"unknown kind {kind!r}", where="model new", remedy=f"one of {', '.join(HIDDEN)}")
    sizes = _sizes(HIDDEN[kind] if hidden is None else hidden)
    names = [name.strip() for name in features.split(",") if name.strip()]
    if names and kind != "mlp":
        raise ConfigError(f"a network of kind {kind} sees the window itself", where="--features",
                          remedy="leave them out, or take an mlp")  # fmt: skip
    if kind == "autoencoder":
        code = sizes[-1] if sizes else max(1, inputs.width // 2)
        model = autoencoder(inputs.width, sizes[:-1], code, seed=seed)
    elif outputs is None:
        raise ConfigError(f"this {kind} needs --outputs", where="--outputs", remedy="classes or targets")
    elif kind == "mlp":
        model = mlp(inputs.width, outputs, sizes, seed=seed, window=inputs.window, features=names)
    elif kind == "cnn2d":
        model = cnn2d(_shaped(kind, inputs.image, "such as 28x28, or 3x32x32"), outputs, sizes, seed=seed)
    else:
        window = _shaped(kind, inputs.window, "such as 128x9: 128 readings of 9 channels")
        model = (cnn1d if kind == "cnn1d" else gru)(window, outputs, sizes, seed=seed)
    publish_file(out, model.SerializeToString(deterministic=True))
    return model


def _shaped(kind: str, shape: _Shape | None, example: str) -> _Shape:
    if shape is None:
        raise ConfigError(f"a {kind} takes {'images' if kind == 'cnn2d' else 'windows'}", where="--inputs",
                          remedy=example)  # fmt: skip
    return shape


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
    data: Path | Frame | None,
    standardise: bool | None,
    engine: str,
    class_weights: str | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    library: Path | None = None,
    naming: Naming = NAMELESS,
    stream: StreamConfig | None = None,
    checkpoint: str = "full",
    sequence: int | None = None,
) -> BundleReport:
    """Build the bundle `out` from a model file; what `inspect` says of it, and `notes` on the way.

    `loss` and what is for cross_entropy are written as `parse` has it. `library` is an ONNX file with
    functions for custom operators.
    With `standardise` the graph gets input statistics (and for value losses target statistics):
    those of `data`, or neutral ones that the first training run fits. Inputs of more axes than (batch, n)
    are left as they are, with a note. With None a network of `edged model new`
    is standardised; any other may be trained already, and is left as it is. Of a file of rows the features of
    `naming` are read, where it has names, and the label of `stream`; samples that it joins are joined.
    `sequence` is the length of the axis, besides the batch, that the inputs leave open.

    Raises EdgedError with one line on what cannot be built and why.
    """
    notes: list[str] = []
    given = _read(model, sequence, notes)
    if standardise is None:
        standardise = given.producer_name == UNTRAINED
        if not standardise:
            if is_standardised(given.graph):
                notes.append(_STANDARDISED)
            elif not scaling_in_front(given.graph):  # else the build tells of it
                notes.append(_AS_IT_IS)
    if standardise and (rank := len(shape_of(given.graph.input[0]))) != 2:
        standardise = False
        notes.append(f"inputs are taken as they are: standardisation is for (batch, n), not for {rank} axes")
    recorded = None if data is None else _recorded(data, stream, naming.features)
    if recorded is not None and (left_out := recorded.left_out()) is not None:
        notes.append(left_out)
        recorded = recorded.finite()
    objective = parse(loss, class_weights, ignore_index, label_smoothing)
    statistics = _statistics(given, objective, recorded, str(data)) if standardise else None
    built = build(
        given, out, loss=objective, optimizer=optimizer, train=train, freeze=freeze, standardise=statistics,
        engine=engine, checkpoint=checkpoint, naming=naming, library=library,
        add_note=notes.append, rows=None if recorded is None else np.asarray(recorded.x, np.float32),
    )  # fmt: skip
    return replace(inspect(built.path), notes=tuple(notes))


def write_parameter(bundle: Path, name: str, out: Path | None) -> None:
    """Write one parameter of a bundle to the file `out` in numpy's format.

    Raises ConfigError without a file, or when there is no such parameter.
    """
    if out is None:
        raise ConfigError("a file is missing", where="-o", remedy="such as -o weight.npy")
    held = io.BytesIO()
    np.save(held, get(bundle, name), allow_pickle=False)
    publish_file(out, held.getvalue())


def read_parameters(assignments: Sequence[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of `NAME=FILE.npy` by name; ConfigError when that cannot be read."""
    values = {}
    for assignment in assignments:
        name, equals, file = assignment.rpartition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} is no NAME=FILE.npy", where="--set")
        try:
            values[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"cannot be read: {problem}", where=file) from problem
    return values


def _read(model: Path, sequence: int | None, notes: list[str]) -> onnx.ModelProto:
    """The model in a file, with the length of its sequences where one is given."""
    given = read_model(model)
    if sequence is not None:
        fix_sequence(given, sequence, notes.append)
    return given


def _recorded(data: Path | Frame, stream: StreamConfig | None, features: Sequence[str]) -> Recording:
    if stream is not None and stream.joined:
        return read_recording(data, stream)
    return read_stream(data, features=features, label=None if stream is None else stream.label_path)


def _statistics(model: onnx.ModelProto, loss: Given, recorded: Recording | None, where: str) -> Statistics:
    refuse_open(model.graph)
    width, outputs = (_row(value) for value in (model.graph.input[0], model.graph.output[0]))
    reconstruct = model.graph.output[0].name == "reconstruction"
    values = loss in MEASURING
    if recorded is None:
        return Statistics.identity(
            width, outputs if values and not reconstruct else None, reconstruct=reconstruct
        )
    if recorded.x.shape[1] != width:
        raise ConfigError(
            f"the data has {recorded.x.shape[1]} features, the model takes {width}",
            where=where,
            remedy="a model of windows wants windows: X of the shape (n, rows, channels)",
        )
    given = dict(zip(("mean", "scale"), _moments(recorded.x), strict=True))
    if values and not reconstruct and recorded.y is not None:
        y = np.asarray(recorded.y, np.float32).reshape(len(recorded.x), -1)
        given |= dict(zip(("target_mean", "target_scale"), _moments(y), strict=True))
    return Statistics.of(given, reconstruct=reconstruct)


def _row(value: onnx.ValueInfoProto) -> int:
    return math.prod(axis.dim_value for axis in value.type.tensor_type.shape.dim[1:])


def _moments(values: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[list[float], list[float]]:
    moments = RunningMoments(len(values))
    moments.update(values)
    mean, scale = moments.scale()
    return mean.tolist(), scale.tolist()


_LISTED = ("input", "output", "label", "parameters", "trainable_size", "frozen_size", "files", "bytes")


@dataclass(frozen=True)
class BuildCheck(Message):
    """Whether an engine can train a model, what stands in the way, and the bundle made of it."""

    model: Path
    ok: bool
    engine: str
    findings: tuple[Obstacle, ...]
    notes: tuple[str, ...]
    bundle: BundleReport | None = None  # None where none could be made

    def to_json(self) -> JsonObject:
        """Return the fields, and beside them those of the bundle that are about its contents."""
        made = {} if self.bundle is None else self.bundle.to_json()
        return {**self.without("bundle"), **{name: made[name] for name in _LISTED if name in made}}


def check(
    model: Path,
    *,
    loss: str,
    optimizer: Optimizer,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    engine: str = "portable",
    standardise: bool | None = None,
    library: Path | None = None,
    sequence: int | None = None,
) -> BuildCheck:
    """What `build_from_file` would make of a model file, or why it would not; `loss` is as for it.

    First the preflight, node by node; then, for what it lets through, a bundle is built in a temporary
    directory, so that what is said to be trainable was made into training graphs.

    Raises ConfigError when loss, optimizer or engine is unknown, or a glob matches nothing; UnavailableError
    for the native engine where onnxruntime-training is not installed.
    """
    check_engine(engine)
    notes: list[str] = []
    functions = None if library is None else read_model(library)
    try:
        given = _read(model, sequence, notes)
        every = keeps_all_outputs(parse(loss))
        conformed = conform(given, all_outputs=every, library=functions, add_note=notes.append)
        trainable, _ = select(conformed.graph, train, freeze)
        if found := [*obstacles(conformed, trainable, engine), *lacking(optimizer, engine)]:
            return BuildCheck(model, False, engine, tuple(found), tuple(notes))
        with tempfile.TemporaryDirectory() as folder:
            made = build_from_file(
                model, Path(folder) / "bundle", loss=loss, optimizer=optimizer, train=train,
                freeze=freeze, data=None, standardise=standardise, engine=engine, library=library,
                sequence=sequence,
            )  # fmt: skip
    except BundleError as problem:
        return BuildCheck(model, False, engine, (_of(problem),), tuple(notes))
    return BuildCheck(model, True, engine, (), made.notes or (), made)


def _of(problem: BundleError) -> Obstacle:
    """What stopped a build, as a finding."""
    node = problem.where.removeprefix("node ") if problem.where.startswith("node ") else ""
    what = problem.what if node or not problem.where else f"{problem.where}: {problem.what}"
    return Obstacle(node, "", what, problem.remedy)
