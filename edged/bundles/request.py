"""The request for a bundle, and the statistics that it asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edged.bundles.graph.edit import AddNote, shape_of
from edged.bundles.graph.naming import Naming
from edged.bundles.graph.templates import UNTRAINED
from edged.bundles.losses.objective import Loss
from edged.bundles.source.axes import refuse_open
from edged.bundles.source.standardise import Statistics, is_standardised, scaling_in_front
from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.training.optimizers import Optimizer
from edged.engines import ENGINES
from edged.errors import ConfigError
from edged.storage.models.bundles import MEASURING

if TYPE_CHECKING:
    from edged.config import StreamConfig
    from edged.storage.recordings.frame import Frame
    from edged.storage.recordings.rows import Recording

CHECKPOINTS = ("full", "nominal")
_AS_IT_IS = (
    "inputs are taken as they are: the network may be trained already; --standardise puts a standardisation"
    " in front, for one that is to be trained from the beginning"
)
_STANDARDISED = "the standardisation in front of the network stays as it is"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Contents of a bundle that is to be built. The same request gives the same bytes.

    Attributes
    ----------
    model
        An ONNX file, or a model in memory: one float32 input `(batch, ...)` and one float32 output, or
        several for a function; logits for the classifying losses.
    loss
        The loss, the mean over the batch; see `edged.bundles.losses.objective.parse`.
    optimizer
        The optimizer with its options.
    train
        Globs over parameter names, or `last:N` for the N last layers: only what matches is trained.
        Everything, when empty.
    freeze
        The same: what matches is not trained.
    engine
        Engine the bundle is for: `portable` or `native`.
    standardise
        Statistics that become part of the graphs. True: those of `data`, or neutral ones that the first
        training run fits. False: values go in as they are. None: as True for a network of `edged model new`;
        any other may be trained already, and is left as it is. So are inputs of more axes than (batch, n).
    data, stream
        A recorded stream, on which the network must also say the same as before, where it is not
        standardised; random rows without. Of rows the features of `naming` are read, where it has names, and
        the label of `stream`; samples that it joins are joined.
    naming
        Names and units of inputs and outputs; a device refuses a bundle that was built for others.
    library
        An ONNX file with functions for operators of the model that are not ONNX's own.
    sequence
        Length of the axis, besides the batch, that the inputs leave open.
    checkpoint
        `full`, or `nominal`: without the values of parameters, which then are delivered apart, in
        `parameters.safetensors`.
    seed
        Noted in the bundle: the seed the model was initialised from, and from which the portable engine
        draws the noise of its steps.

    Raises
    ------
    ConfigError
        When there is no such engine or form of a checkpoint.
    """

    model: onnx.ModelProto | Path
    loss: Loss
    optimizer: Optimizer = field(default_factory=lambda: Optimizer.of("adamw"))
    train: Sequence[str] = ()
    freeze: Sequence[str] = ()
    engine: str = "portable"
    standardise: Statistics | bool | None = None
    data: Path | Frame | None = None
    stream: StreamConfig | None = None
    naming: Naming = field(default_factory=Naming)
    library: Path | None = None
    sequence: int | None = None
    checkpoint: str = "full"
    seed: int | None = None

    def __post_init__(self) -> None:
        for where, chosen, known in (
            ("engine", self.engine, ENGINES),
            ("checkpoint", self.checkpoint, CHECKPOINTS),
        ):
            if chosen not in known:
                raise ConfigError(f"there is no {where} {chosen!r}", where=where,
                                  remedy=f"one of {', '.join(known)}")  # fmt: skip


def statistics_of(
    model: onnx.ModelProto, request: BuildRequest, add_note: AddNote
) -> tuple[Statistics | None, NDArray[np.float32] | None]:
    """Return the statistics to put into the graphs, if any, and the recorded rows."""
    given = request.standardise
    if given is None:
        given = model.producer_name == UNTRAINED
        if not given and is_standardised(model.graph):
            add_note(_STANDARDISED)
        elif not given and not scaling_in_front(model.graph):  # else a note tells of it
            add_note(_AS_IT_IS)
    if given is True and (rank := len(shape_of(model.graph.input[0]))) != 2:
        given = False
        add_note(f"inputs are taken as they are: standardisation is for (batch, n), not for {rank} axes")
    recorded = _recorded(request, add_note)
    rows = None if recorded is None else np.asarray(recorded.x, np.float32)
    if given is True:
        given = _fitted(model, request.loss, recorded)
    return (given if isinstance(given, Statistics) else None), rows


def _recorded(request: BuildRequest, add_note: AddNote) -> Recording | None:
    data, stream = request.data, request.stream
    if data is None:
        return None
    # Imported here: a device that builds its standard bundle reads no recording.
    from edged.storage.recordings.reader import read_stream
    from edged.storage.recordings.samples import read_recording

    if stream is not None and stream.joined:
        recorded = read_recording(data, stream)
    else:
        label = None if stream is None else stream.label_path
        recorded = read_stream(data, features=request.naming.features, label=label)
    if (left_out := recorded.left_out()) is None:
        return recorded
    add_note(left_out)
    return recorded.finite()


def _fitted(model: onnx.ModelProto, loss: Loss, recorded: Recording | None) -> Statistics:
    """Return the statistics of a recording; neutral ones without."""
    refuse_open(model.graph)
    width, outputs = (_width(value) for value in (model.graph.input[0], model.graph.output[0]))
    reconstruct = model.graph.output[0].name == "reconstruction"
    values = loss.name in MEASURING and not reconstruct
    if recorded is None:
        return Statistics.identity(width, outputs if values else None, reconstruct=reconstruct)
    if recorded.x.shape[1] != width:
        raise ConfigError(
            f"the data has {recorded.x.shape[1]} features, the model takes {width}",
            where="data",
            remedy="a model of windows wants windows: X of the shape (n, rows, channels)",
        )
    fitted = dict(zip(("mean", "scale"), _moments(recorded.x), strict=True))
    if values and recorded.y is not None:
        y = np.asarray(recorded.y, np.float32).reshape(len(recorded.x), -1)
        fitted |= dict(zip(("target_mean", "target_scale"), _moments(y), strict=True))
    return Statistics.of(fitted, reconstruct=reconstruct)


def _width(value: onnx.ValueInfoProto) -> int:
    return math.prod(axis.dim_value for axis in value.type.tensor_type.shape.dim[1:])


def _moments(values: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[list[float], list[float]]:
    moments = RunningMoments(len(values))
    moments.update(values)
    mean, scale = moments.scale()
    return mean.tolist(), scale.tolist()
