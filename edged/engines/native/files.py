"""What a training engine needs to know of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TrainingFiles(Protocol):
    """Paths of the training artifacts, row shape of the input, name of the output; a Bundle is one."""

    @property
    def training_model(self) -> Path:
        """Forward, loss and gradient graph."""

    @property
    def eval_model(self) -> Path:
        """Forward and loss graph; also holds the inference output."""

    @property
    def optimizer_model(self) -> Path:
        """Path of the parameter update graph."""

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint with the initial parameters."""

    @property
    def parameters_file(self) -> Path | None:
        """Initial parameters where the checkpoint is nominal; None where it holds them."""

    @property
    def apart(self) -> bool:
        """Whether parameters lie in a file of their own, to which the base model refers."""

    @property
    def inference_model(self) -> Path:
        """Base inference model with the initial parameters."""

    @property
    def output_names(self) -> Sequence[str]:
        """Names of the inference outputs inside the graphs, the main one first."""

    @property
    def input_row(self) -> tuple[int, ...]:
        """Sizes of one input row inside the graphs: `(d,)`, or more for images and windows."""
