"""The ServerApp: a strategy of Flower's, chosen by the run's configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower
from safetensors.numpy import load_file, save_file

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy from the file `model`, or from the weights that the devices' bundle begins with."""
    config = context.run_config
    path = Path(str(config["model"])) if config["model"] else None
    if path is not None and path.exists():
        arrays = ArrayRecord({name: Array(value) for name, value in load_file(path).items()})
    else:
        arrays = initial_arrays(grid, config)
    rounds, timeout = int(config["num-server-rounds"]), float(config["timeout"])
    result = chosen_strategy(config).start(grid, arrays, num_rounds=rounds, timeout=timeout)
    if path is not None and result.arrays:
        save_file({name: array.numpy() for name, array in result.arrays.items()}, path)


def chosen_strategy(config: Mapping[str, Any]) -> flower.Strategy:
    """Return the strategy that the run's configuration describes."""
    name, nodes = str(config["strategy"]), int(config["min-nodes"])
    common = {"min_train_nodes": nodes, "min_evaluate_nodes": nodes, "min_available_nodes": nodes}
    if name == "FedAvg":
        strategy: flower.Strategy = flower.FedAvg(**common)
    elif name == "FedProx":
        strategy = flower.FedProx(**common, proximal_mu=float(config["proximal-mu"]))
    elif name == "Krum":
        strategy = flower.Krum(**common, num_malicious_nodes=int(config["malicious-nodes"]))
    else:
        raise ValueError(f"strategy: expected FedAvg, FedProx or Krum, got {name!r}")
    noise = float(config["noise-multiplier"])
    if noise:
        clipping = float(config["clipping-norm"])
        strategy = flower.DifferentialPrivacyServerSideFixedClipping(strategy, noise, clipping, nodes)
    return strategy


def initial_arrays(grid: Grid, config: Mapping[str, Any]) -> ArrayRecord:
    """Ask the nodes for the weights that their bundle begins with; return the first answer."""
    while len(nodes := list(grid.get_node_ids())) < int(config["min-nodes"]):
        time.sleep(1.0)
    asked = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(asked, timeout=float(config["timeout"])))
    for reply in replies:
        if not reply.has_error():
            found: ArrayRecord = reply.content["arrays"]
            return found
    reasons = [reply.error.reason for reply in replies] or ["no answer"]
    raise RuntimeError(f"no node has returned initial weights: {reasons[0]}")
