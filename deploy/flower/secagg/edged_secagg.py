"""Secure aggregation: the SuperLink learns the sum of all weights alone.

SecAgg+: Bell et al. 2020, "Secure single-server aggregation with (poly)logarithmic overhead".
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from edged_flower.daemon import Daemon

Arrays = list[NDArray[Any]]


class DeviceClient(NumPyClient):  # type: ignore[misc]
    """Client of one daemon; arrays come in the order of the parameters' names."""

    def __init__(self, context: Context) -> None:
        self._daemon = Daemon(context)
        self._initial = self._daemon.initial()
        self._names = sorted(self._initial)

    def get_parameters(self, config: dict[str, Any]) -> Arrays:  # noqa: ARG002  Flower's signature
        """Return the weights that the device's bundle begins with."""
        return [self._initial[name] for name in self._names]

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Have the daemon train; an exception tells Flower that the device declines."""
        trained, about = self._daemon.train(dict(zip(self._names, parameters, strict=True)), config)
        return [trained[name] for name in self._names], int(about["samples"]), {}

    def evaluate(self, parameters: Arrays, config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Have the daemon judge the weights, and offer them to its gate as the run says."""
        about = self._daemon.evaluate(dict(zip(self._names, parameters, strict=True)), config)
        return float(about["loss"]), int(about["samples"]), {"taken": float(about["taken"])}


client = ClientApp(lambda context: DeviceClient(context).to_client(), mods=[secaggplus_mod])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg over masked sums; a round ends as long as two thirds of its devices stay."""
    config = context.run_config
    rounds, timeout = int(config["num-server-rounds"]), float(config["timeout"])
    while len(list(grid.get_node_ids())) < int(config["min-nodes"]):
        time.sleep(1.0)
    strategy = FedAvg(
        min_fit_clients=3,  # in a sum of two, each knows the other's part
        min_evaluate_clients=2,
        min_available_clients=2,
        on_fit_config_fn=_numbered,
        on_evaluate_config_fn=_numbered,
    )
    masked = SecAggPlusWorkflow(1.0, 0.67, max_weight=float(config["max-samples"]), timeout=timeout)
    legacy = LegacyContext(context, ServerConfig(num_rounds=rounds, round_timeout=timeout), strategy)
    DefaultWorkflow(fit_workflow=masked)(grid, legacy)
    if config["model"]:
        final = legacy.state.array_records[MAIN_PARAMS_RECORD]
        np.savez(str(config["model"]), *final.to_numpy_ndarrays())


def _numbered(number: int) -> dict[str, Any]:
    return {"server-round": number}
