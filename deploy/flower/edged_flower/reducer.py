"""A strategy of Flower as a reducer: it configures a round, hears all devices, makes one model of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import NoDataError, TrainingError
from edged.fleet.rules.aggregation import Aggregate
from edged_flower.compat import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.training.weight_coding import Weights
    from edged.fleet.config import CoordinatorConfig
    from edged.fleet.coordinator.models import ReducerOf
    from edged.fleet.rules.aggregation import AdmittedUpdate
    from edged.fleet.rules.layout import Layout

    Memory = Mapping[str, NDArray[Any]]

MEMORY = ("m_t", "v_t", "momentum_vector")
"""Attributes in which these strategies remember, by parameter, what the next round needs."""


def reducers() -> ReducerOf:
    """Make Flower usable; returns what makes the reducer of a round. The entry point of this distribution.

    UnavailableError when Flower is installed in another version.
    """
    require()
    return reducer_of


def reducer_of(config: CoordinatorConfig, base: Weights, number: int, memory: Memory) -> Strategy:
    """Make the reducer of round `number`."""
    return Strategy(config.reduce.strategy, config.reduce.options, base, number, memory)


class Strategy:
    """One round of a strategy, as `strategy.start` goes through it, from the fleet's model `base` on.

    `name` and `options` are its class and arguments for that. Adaptive strategies correct their first rounds,
    hence `number`. `memory` is what the strategy remembered when it made that model.
    """

    def __init__(
        self, name: str, options: Mapping[str, float], base: Weights, number: int, memory: Memory
    ) -> None:
        self._name, self._options, self._base = name, options, base
        self._number, self._memory = number, memory

    def begin(self, layout: Layout, expected: int) -> None:  # noqa: ARG002  a list grows
        """Prepare for the updates of a round."""
        self._layout, self._start = layout, layout.vector(self._base)
        self._contributions: list[AdmittedUpdate] = []

    def add(self, contribution: AdmittedUpdate) -> None:
        """Keep an update as it was received."""
        self._contributions.append(contribution)

    def finish(self) -> Aggregate:
        """Run the strategy over all updates.

        Raises
        ------
        NoDataError
            When there were none.
        TrainingError
            When the strategy fails, as it does with fewer devices than it needs.
        """
        if not self._contributions:
            raise NoDataError("no update to aggregate")
        strategy = made(self._name, self._options)
        remind(strategy, self._memory, self._layout.names)
        try:
            vector = self._round(strategy)
        except Exception as problem:  # whatever it may be: the round is over, the coordinator is not
            raise TrainingError(f"the strategy failed: {problem!r}"[:300], where=self._name) from problem
        if vector is None:
            few = f"it made nothing of {len(self._contributions)} updates: too few for it, or too unlike"
            raise TrainingError(few, where=self._name)
        samples = sum(contribution.samples for contribution in self._contributions)
        memory = memory_of(strategy, self._layout.names)
        return Aggregate(vector - self._start, len(self._contributions), samples, memory)

    def _round(self, strategy: Any) -> NDArray[np.float64] | None:
        from flwr.app import ConfigRecord

        from edged_flower.grid import MqttGrid, record_of

        grid = MqttGrid(self._contributions, self._layout, self._start)
        base = record_of(self._layout.weights(self._start))  # FedAvgM goes by the order of parameters
        asked = strategy.configure_train(self._number, base, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(self._number, grid.send_and_receive(asked))
        if arrays is None:
            return None
        found = [arrays[name].numpy().astype(np.float64) for name in self._layout.names]
        if [value.shape for value in found] != list(self._layout.shapes):
            raise ValueError("it returned other shapes than the model has")
        return np.concatenate([value.reshape(-1) for value in found])


def made(name: str, options: Mapping[str, float]) -> Any:
    """A strategy that asks all nodes, however few; Flower must be ready (`compat.require`)."""
    from flwr.serverapp import strategy

    whole = {key: int(value) if key.startswith("num_") else value for key, value in options.items()}
    return getattr(strategy, name)(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, **whole)


def memory_of(strategy: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Read what a strategy remembers, as `<attribute>/<parameter>`."""
    found: dict[str, NDArray[Any]] = {}
    for attribute in MEMORY:
        held = getattr(strategy, attribute, None)
        if held is not None:
            by_name = held if isinstance(held, dict) else dict(zip(names, held, strict=True))
            found |= {f"{attribute}/{name}": np.asarray(value) for name, value in by_name.items()}
    return found


def remind(strategy: Any, memory: Memory, names: tuple[str, ...]) -> None:
    """Give a strategy what `memory_of` gave, where it has a place for that."""
    for attribute in MEMORY:
        held = {name: memory[key] for name in names if (key := f"{attribute}/{name}") in memory}
        if len(held) == len(names) and hasattr(strategy, attribute):
            setattr(strategy, attribute, list(held.values()) if attribute == "momentum_vector" else held)
