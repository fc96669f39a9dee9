"""The graphs of a bundle, bound to the portable engine's memory; each is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edged.engines.portable.bound_graph import Program
from edged.engines.runtime import ort
from edged.errors import BundleError

if TYPE_CHECKING:
    import numpy as np

    from edged.domain.bundle_contents import BundleContents
    from edged.engines.portable.buffers import StateBuffers
    from edged.engines.portable.description import Description

    Sides = list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]

# numpy raises ValueError for arrays that cannot be brought to the graph's shape.
RUN_ERRORS: tuple[type[Exception], ...] = (*ort.ERRORS, ValueError)


class Graphs:
    """The step in its forms, and the evaluation.

    Raises UnavailableError when this machine cannot use one of the execution providers; BundleError when a
    graph cannot be loaded; for the plain step that is at once, else when it is first used.
    """

    def __init__(
        self,
        bundle: BundleContents,
        description: Description,
        memory: StateBuffers,
        threads: int,
        providers: Sequence[str],
    ) -> None:
        self._folder, self._description, self._memory = bundle.path, description, memory
        self._threads = description.threads(threads)
        self._providers = providers
        self._rows = (description.data, description.label)
        self._inputs = [*self._rows, *([description.noise.name] if description.noise.width else [])]
        self.step = self._program("step", memory.step_sides(), self._inputs, description.weights)

    def path(self, model: str) -> Path:
        """The file of a graph."""
        return self._folder / self._description.models[model]

    def _program(self, model: str, sides: Sides, rows: Sequence[str], weights: str = "") -> Program:
        path = self.path(model)
        try:
            # Of graphs with large operators the runtime's order is the faster one.
            session = ort.session(str(path), self._threads, self._providers, in_order=self._description.small)
            return Program(session, rows, sides, weights)
        except RUN_ERRORS as problem:
            raise BundleError(
                f"the step graph cannot be loaded: {ort.one_line(problem)}",
                where=str(path),
                remedy="check it with `edged artifacts verify`",
            ) from problem

    @cached_property
    def carry(self) -> Program:
        """The step with gradients that earlier ones left."""
        return self._program("carry", self._memory.carry_sides(), self._inputs, self._description.weights)

    @cached_property
    def guided(self) -> Program:
        """The step with gradients that earlier ones left, and anchor weights."""
        sides = self._memory.guided_sides()
        return self._program("guided", sides, self._inputs, self._description.weights)

    @cached_property
    def evaluation(self) -> Program:
        """Build the program that computes the loss alone."""
        return self._program("evaluation", self._memory.evaluation_sides(), self._rows)
