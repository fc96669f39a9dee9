"""The edged daemon of a node, over its Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from safetensors.numpy import load, save

Weights = dict[str, NDArray[np.float32]]
SOCKET = "/run/edged/edged.sock"
SECONDS = 3600.0  # longest wait for an answer; the daemon itself limits training to fleet.budget


class DeclinedError(Exception):
    """The daemon declines a request, or cannot answer; `code` is its HTTP status, 503 without an answer."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class _UnixConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


class Daemon:
    """The daemon whose socket the node's configuration names as `edged-socket`; methods raise DeclinedError.

    Weights are the trainable parameters by name, float32.
    """

    def __init__(self, context: Context) -> None:
        self._path = str(context.node_config.get("edged-socket", SOCKET))
        self._config = context.run_config

    def initial(self) -> Weights:
        """Return the weights that the device's bundle begins with."""
        return self._ask("train", self._settings({}))[1]

    def train(self, weights: Weights, config: Mapping[str, Any]) -> tuple[Weights, dict[str, Any]]:
        """Train with the configuration of a round; return new weights, `samples`, `loss` and `accuracy`."""
        about, trained = self._ask("train", self._settings(config), weights)
        return trained, about

    def evaluate(self, weights: Weights, config: Mapping[str, Any]) -> dict[str, Any]:
        """Judge these weights, and offer them to the gate after the rounds that `offer` names."""
        given = {"server-round": 0, "offer": "never", **self._config, **config}
        last = given["server-round"] == given.get("num-server-rounds")
        offer = given["offer"] == "each" or (given["offer"] == "last" and last)
        return self._ask("evaluate", {"round": int(given["server-round"]), "offer": offer}, weights)[0]

    def _settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of training: the run's configuration, and over it that of the round."""
        given = {"steps": 0, "epochs": 1, "batch-size": 32, "learning-rate": 1e-3, "proximal-mu": 0.0}
        given |= {"server-round": 0, **self._config, **config}
        steps = int(given["steps"]) or None
        return {
            "steps": steps,
            "epochs": None if steps else int(given["epochs"]),
            "batch_size": int(given["batch-size"]),
            "learning_rate": float(given["learning-rate"]),
            "proximal_mu": float(given["proximal-mu"]),
            "round": int(given["server-round"]),
        }

    def _ask(
        self, what: str, fields: dict[str, Any], weights: Mapping[str, NDArray[Any]] | None = None
    ) -> tuple[dict[str, Any], Weights]:
        body = json.dumps(fields).encode() + b"\n"
        if weights is not None:  # SecAgg+ gives float64
            body += save({name: np.asarray(value, np.float32, "C") for name, value in weights.items()})
        connection = _UnixConnection(self._path, timeout=SECONDS)
        try:
            connection.request("POST", f"/api/fleet/{what}", body, {"host": "localhost"})
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise DeclinedError(503, f"the daemon at {self._path} does not answer: {problem!r}") from problem
        finally:
            connection.close()
        line, _, trained = content.partition(b"\n")
        if status != 200:
            raise DeclinedError(status, json.loads(line)["error"])
        return json.loads(line), load(trained) if trained else {}
