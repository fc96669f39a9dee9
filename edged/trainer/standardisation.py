"""The units of inputs and targets inside the graph: they follow the inputs, and are fitted to the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.stream.running_statistics import fitted, scale_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine
    from edged.domain.stream.sample import Window
    from edged.domain.training.learner_state import LearnerState
    from edged.trainer.task import LearningTask


class InputStatistics:
    """Updates the statistics among an engine's parameters.

    The engine has the bundle's initial weights. `names` are those of the parameters that hold statistics of
    inputs and targets.
    """

    def __init__(self, task: LearningTask, engine: Engine) -> None:
        self._inputs, self._targets = task.bundle.standardise, task.bundle.target_standardise
        self._task, self._initial = task, engine.parameters()
        parts = [part for part in (self._inputs, self._targets) if part is not None]
        self.names = {str(name) for part in parts for name in part.values()}

    def of(self, engine: Engine) -> dict[str, NDArray[np.float32]]:
        """Return the statistics among an engine's parameters."""
        return {name: value for name, value in engine.parameters().items() if name in self.names}

    def follow(self, engine: Engine, state: LearnerState, new: Window) -> None:
        """Move the standardisation inside the graph after the inputs; fit it when it never was."""
        overwrite: dict[str, NDArray[np.float32]] = {}
        names, training = self._inputs, self._task.training
        if names is not None:
            moments = state.moments
            mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
            if moments.mean is None and fitted(mean, scale):
                state.moments = moments = moments.of_scale(training.half_life, mean, scale)
            if training.restandardise or moments.mean is None:
                moments.update(new.x)
                overwrite[names["mean"]], overwrite[names["scale"]] = moments.scale()
        overwrite |= self._fit_targets(state, new)
        if overwrite:
            engine.set_parameters(overwrite)

    def begin_with(self, state: LearnerState, weights: dict[str, NDArray[np.float32]]) -> None:
        """Continue from the statistics among weights that come from elsewhere."""
        names = self._inputs
        if names is not None and fitted(weights[names["mean"]], weights[names["scale"]]):
            mean, scale = weights[names["mean"]], weights[names["scale"]]
            state.moments = state.moments.of_scale(self._task.training.half_life, mean, scale)

    def _fit_targets(self, state: LearnerState, new: Window) -> dict[str, NDArray[np.float32]]:
        """Fit target units once, at the first run: later the weights depend on them."""
        names = self._targets
        if names is None or state.total_steps > 0 or self._task.schema.labels_itself:
            return {}
        mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
        if fitted(mean, scale):
            return {}
        centre, unit = scale_of(new.y)
        return {names["mean"]: centre.reshape(mean.shape), names["scale"]: unit.reshape(scale.shape)}
