"""The units of inputs and targets inside the graph: they follow the inputs, and are fitted to the targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.stream.running_statistics import fitted, scale_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema
    from edged.domain.training.learner_state import LearnerState
    from edged.storage.models.bundles import Bundle


class InputStatistics:
    """Keeps the statistics among an engine's parameters; `engine` is as the bundle has it."""

    def __init__(self, bundle: Bundle, config: TrainingConfig, schema: Schema, engine: Engine) -> None:
        self._inputs, self._targets = bundle.standardise, bundle.target_standardise
        self._config, self._schema = config, schema
        self._initial = engine.parameters()

    @property
    def names(self) -> list[str]:
        """Names of the parameters that hold statistics of inputs and targets."""
        return [str(name) for names in (self._inputs, self._targets) for name in (names or {}).values()]

    def follow(self, engine: Engine, state: LearnerState, new: Window) -> None:
        """Move the standardisation inside the graph after the inputs; fit it when it never was."""
        overwrite: dict[str, NDArray[np.float32]] = {}
        names = self._inputs
        if names is not None:
            moments = state.moments
            mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
            if moments.mean is None and fitted(mean, scale):
                state.moments = moments = moments.of_scale(self._config.half_life, mean, scale)
            if self._config.restandardise or moments.mean is None:
                moments.update(new.x)
                overwrite[names["mean"]], overwrite[names["scale"]] = moments.scale()
        overwrite |= self._fit_targets(state, new)
        if overwrite:
            engine.set_parameters(overwrite)

    def begin_with(self, state: LearnerState, weights: dict[str, NDArray[np.float32]]) -> None:
        """Go on from the statistics among weights that come from elsewhere."""
        names = self._inputs
        if names is not None and fitted(weights[names["mean"]], weights[names["scale"]]):
            mean, scale = weights[names["mean"]], weights[names["scale"]]
            state.moments = state.moments.of_scale(self._config.half_life, mean, scale)

    def _fit_targets(self, state: LearnerState, new: Window) -> dict[str, NDArray[np.float32]]:
        """Target units are fitted once, at the first run: later the weights depend on them."""
        names = self._targets
        if names is None or state.total_steps > 0 or self._schema.labels_itself:
            return {}
        mean, scale = self._initial[names["mean"]], self._initial[names["scale"]]
        if fitted(mean, scale):
            return {}
        centre, unit = scale_of(new.y)
        return {names["mean"]: centre.reshape(mean.shape), names["scale"]: unit.reshape(scale.shape)}
