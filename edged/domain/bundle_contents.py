"""What a bundle is made of: its tensors, files and parameters, as `bundle.json` names them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from edged.domain.json_fields import Count, Digest, JsonObject
from edged.domain.training.message import Message, SparseMessage

REBUILD = "build the bundle again with `edged artifacts build`"
# Where parameters lie that are delivered apart from a nominal checkpoint, or are too many for a whole one.
PARAMETERS = "parameters.safetensors"

# ---- names in the files of a model, in the registry or of a candidate ---------------------------

MODEL = "model.onnx"
PROBE_FILES = ("probe_input.npy", "probe_output.npy")
"""Inputs `(n, d)` in a candidate, and the trainer's outputs for them: the daemon must get the same."""
EXPERTS = "experts"
"""The output of a model of experts that has what each of them says, `(batch, experts·classes)`."""
MIX_WEIGHTS = "mix.weights"
"""Its parameter with how much each expert counts, `(1, experts, 1)`."""
TARGET_MEAN = "target.mean"
"""A parameter of a standard network that answers numbers."""
FLOOR = 1e-4  # added to probabilities: what an expert holds for impossible costs it no more than this


@dataclass(frozen=True)
class Tensor:
    """An input, output or label: a `str` in `shape` is a dimension that may vary.

    `names` and `units` are those of the numbers in a row (of the channels, where a row is a window; of the
    classes, for the output of a classifier), empty where nobody has told them.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def row(self) -> tuple[int, ...]:
        """Sizes of one row: all dimensions after the batch."""
        return tuple(dim for dim in self.shape[1:] if isinstance(dim, int))

    @property
    def width(self) -> int:
        """Number of values in one row."""
        return math.prod(self.row)


Standardisation: TypeAlias = Mapping[str, str]
"""Names of the frozen parameters that hold the `mean` and the factor `scale` (1/std), each `(d,)` float32."""


@dataclass(frozen=True)
class FileEntry:
    """What a file, or a chunk of one, must be: size in bytes and SHA-256 in hexadecimal."""

    bytes: Count
    sha256: Digest

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """Hash the file at `path`."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return cls(path.stat().st_size, digest.hexdigest())


def entry_of(data: bytes) -> FileEntry:
    """What a file with this content must be."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class LossOptions(SparseMessage):
    """What the name of a loss does not tell; None where it is as usual.

    `class_weights` has how much each class counts, `ignore_index` is the class that does not count, and
    `label_smoothing` the share of a label that is spread over all classes, from 0 to 1.
    """

    class_weights: tuple[float, ...] | None = None
    ignore_index: int | None = None
    label_smoothing: float | None = None


@dataclass(frozen=True)
class BundleContents(Message):
    """What a bundle directory holds, and everything its `bundle.json` says.

    `standardise` names the input statistics inside the graphs, `target_standardise` those of the
    target; both None where the graphs take values as they are. Labels are always in raw units.
    `portable` describes the step graph for the portable engine, in the words of the version that built it:
    `Description` reads them; None where there is none. `engine` is the one that it was built for. `made_with`
    has the versions of what built it, by package.
    A model of several outputs has `more_outputs` behind the main one.
    `context` are half-lives of means: its model sees how samples differ from them, see `TemporalContext`.
    `change_of` are columns of the input: the outputs are changes from their values, and `target_standardise`
    has the statistics of those changes.
    A signed bundle has a `version`, a number that rises, and may expire at `expires`, in Unix seconds.
    """

    path: Path
    edged: str
    loss: str
    optimizer: str
    input: Tensor
    output: Tensor
    label: Tensor
    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    standardise: Standardisation | None = None
    target_standardise: Standardisation | None = None
    opset: int = 21
    engine: str = "portable"
    seed: int | None = None
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    portable: JsonObject | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)
    more_outputs: tuple[Tensor, ...] = ()
    loss_options: LossOptions = LossOptions()
    context: tuple[float, ...] = ()
    change_of: tuple[int, ...] = ()
    version: int | None = None
    expires: int | None = None

    @property
    def training_model(self) -> Path:
        """Path of the graph for forward pass, loss and gradients."""
        return self.path / "training_model.onnx"

    @property
    def eval_model(self) -> Path:
        """Forward and loss graph; also holds the inference output."""
        return self.path / "eval_model.onnx"

    @property
    def optimizer_model(self) -> Path:
        """Path of the parameter update graph."""
        return self.path / "optimizer_model.onnx"

    @property
    def checkpoint(self) -> Path:
        """Path of the initial parameters."""
        return self.path / "checkpoint"

    @property
    def parameters_file(self) -> Path | None:
        """Initial parameters where the checkpoint is nominal; None where it holds them."""
        return self.path / PARAMETERS if PARAMETERS in self.files else None

    @property
    def inference_model(self) -> Path:
        """Base inference model with the initial parameters."""
        return self.path / "inference_model.onnx"

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of all outputs inside the graphs, the main one first."""
        return tuple(output.name for output in (self.output, *self.more_outputs))

    @property
    def label_loss(self) -> str:
        """The loss whose form of labels this bundle takes; cross_entropy for one of your own on classes."""
        return "cross_entropy" if self.label.dtype == "int64" else self.loss

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the names and hashes of all files: equal bundles have equal fingerprints."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
