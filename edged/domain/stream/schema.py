"""What a stream carries: its features, its task and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.open_classes import OpenClasses
from edged.errors import ConfigError, RejectedSampleError, did_you_mean, one_of

LARGEST = float(np.finfo(np.float32).max)

Task = Literal["classify", "regress", "reconstruct", "forecast"]


@dataclass(frozen=True)
class Schema:
    """The shape of one stream."""

    names: tuple[str, ...]  # of what a reading holds (JSON paths) in model input order; empty for an array
    width: int  # what a model takes: channels of a reading, times the readings of a window, and context
    task: Task
    classes: Sequence[str] = ()  # names of labels in output order for `classify`, else empty
    targets: int = 1  # width of the target vector; 1 for `classify`: a class index
    steps: int = 1  # readings in a window; 1 where every reading is a sample
    target_max: float | None = None  # larger regression targets are read as this
    units: tuple[str, ...] = ()  # of what a reading holds; empty where they are not told, as those of targets
    target_units: tuple[str, ...] = ()
    context: tuple[float, ...] = ()  # half-lives of the means that a model sees a sample beside, in samples
    forecast: tuple[int, ...] = ()  # columns of a sample whose later values are the targets of a forecast

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError("a stream needs at least one feature", where="stream.features")
        if self.task == "classify" and len(self.classes) < 2:
            raise ConfigError(
                "classification needs at least two classes",
                where="stream.classes",
                remedy="give their number or a list of names",
            )

    @property
    def measured(self) -> int:
        """Numbers in a sample without its context, which comes behind them."""
        return self.width // (1 + len(self.context))

    @property
    def channels(self) -> int:
        """Numbers in one reading: as many as there are features, unless samples are windows."""
        return self.measured // self.steps

    @property
    def outputs(self) -> int:
        """Width of the model's output vector."""
        return len(self.classes) if self.task == "classify" else self.targets

    @property
    def output_widths(self) -> tuple[int, ...]:
        """Widths of model outputs that fit the stream: two classes may share one logit."""
        return (1, 2) if len(self.classes) == 2 else (self.outputs,)

    @property
    def named_classes(self) -> tuple[str, ...]:
        """The classes, where they have names; none where only their number is known."""
        numbered = self.classes == tuple(map(str, range(len(self.classes))))
        return () if numbered or self.open is not None else tuple(self.classes)

    @cached_property
    def open(self) -> OpenClasses | None:
        """The classes, where they come and go; None where they are those of the configuration."""
        return self.classes if isinstance(self.classes, OpenClasses) else None

    @property
    def known_classes(self) -> tuple[str, ...]:
        """The classes of now, for people."""
        return tuple(self.classes) if self.open is None else self.open.known

    def fixed(self) -> Schema:
        """The schema for another process: classes that come and go are outputs by number there."""
        numbers = tuple(str(place) for place in range(len(self.classes)))
        return self if self.open is None else replace(self, classes=numbers)

    @cached_property
    def numeric_names(self) -> bool:
        """Whether classes are named by numbers: then a number in a message is a name, not a position."""
        return (
            bool(self.classes)
            and self.open is None
            and all(name.lstrip("-").isdigit() for name in self.classes)
        )

    @property
    def labels_itself(self) -> bool:
        """Whether the target is the input (`reconstruct`), so that every sample is labelled."""
        return self.task == "reconstruct"

    def parse_label(self, value: Any) -> float | tuple[float, ...]:
        """Turn a label as it came in a message into a class index or target value(s).

        Raises RejectedSampleError with reason `label` when the value is no class of this stream or no finite
        number.

        >>> Schema((), 2, "classify", ("ok", "worn")).parse_label("worn")
        1.0
        """
        if self.task == "classify":
            return float(self._class_index(value))
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) != self.targets:
            raise RejectedSampleError("label", f"label has {len(values)} values, expected {self.targets}")
        most = LARGEST if self.target_max is None else self.target_max
        numbers = tuple(min(self._number(v), most) for v in values)
        return numbers[0] if self.targets == 1 else numbers

    def _class_index(self, value: Any) -> int:
        if self.open is not None:
            return self.open.place(_name_of(value))
        if isinstance(value, bool):
            index = int(value)
        elif self.numeric_names and isinstance(value, int | float):
            name = f"{value:g}" if isinstance(value, float) else str(value)
            if name not in self.classes:
                raise self._unknown(name)
            return self.classes.index(name)
        elif isinstance(value, str):
            if value not in self.classes:
                raise self._unknown(value)
            return self.classes.index(value)
        elif isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            index = int(value)
        else:
            what = f"label of type {type(value).__name__} is no class: {one_of(self.classes)} are known"
            raise RejectedSampleError("label", what)
        if not 0 <= index < len(self.classes):
            raise RejectedSampleError(
                "label", f"class {index} is outside 0..{len(self.classes) - 1} ({one_of(self.classes)})"
            )
        return index

    def _unknown(self, name: str) -> RejectedSampleError:
        near = did_you_mean(name, self.classes)
        what = f"label {name[:40]!r} is none of the {len(self.classes)} classes {one_of(self.classes)}"
        return RejectedSampleError("label", f"{what}: {near}" if near else what)

    @staticmethod
    def _number(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RejectedSampleError("label", f"label of type {type(value).__name__} is no number")
        if not abs(value) <= LARGEST:
            raise RejectedSampleError("label", "label is not a finite float32 number")
        return float(value)

    def check(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Rows that may be trained on: `(n,)` bool, from `(n, d)` inputs and `(n, targets)` labels.

        A label outside the classes gives garbage losses without an error, and one NaN feature
        destroys the weights, so every window passes here before any step.
        """
        good = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
        if self.task == "classify":
            label = y[:, 0]
            good &= (label >= 0) & (label < len(self.classes)) & (label == np.floor(label))
        return np.asarray(good)


def _name_of(value: Any) -> str:
    """The name of a class that a message brings; of a number its digits."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RejectedSampleError("label", f"label of type {type(value).__name__} is no name of a class")
    return value if isinstance(value, str) else f"{value:.15g}"
