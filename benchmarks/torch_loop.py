"""PyTorch's eager training step on the networks of `models.py`, in a process of its own.

`engines.py --torch PYTHON` starts it with an interpreter that has torch. A JSON line on stdin says what to
train; then every line is a number of steps, and the answer the seconds that they took.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import numpy as np

# torch is not among the packages that edged is checked with.
torch: Any = importlib.import_module("torch")
nn: Any = torch.nn


def dense() -> tuple[Any, Callable[[Any], Any]]:
    """64-128-64-6; inputs are standardised first, by statistics that are not trained."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 6))
    mean, scale = torch.zeros(64), torch.ones(64)
    return net, lambda x: net(((x - mean) * scale).clamp(-10, 10))


def convolutional(
    dims: int, channels: tuple[int, ...], size: int, classes: int
) -> tuple[Any, Callable[[Any], Any]]:
    conv, pool = (nn.Conv1d, nn.MaxPool1d) if dims == 1 else (nn.Conv2d, nn.MaxPool2d)
    mean = nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1)
    first, second, third, fourth = channels
    net = nn.Sequential(
        *(conv(first, second, size, padding=size // 2), nn.ReLU(), pool(2)),
        *(conv(second, third, size, padding=size // 2), nn.ReLU(), pool(2)),
        *(conv(third, fourth, size, padding=size // 2), nn.ReLU()),
        *(mean, nn.Flatten(), nn.Linear(fourth, classes)),
    )
    return net, net


def recurrent(layer: Any) -> tuple[Any, Callable[[Any], Any]]:
    parts = nn.ModuleList([layer(9, 64, batch_first=True), nn.Linear(64, 6)])
    return parts, lambda x: parts[1](parts[0](x)[0][:, -1])


NETWORKS: dict[str, Callable[[], tuple[Any, Callable[[Any], Any]]]] = {
    "mlp": dense,
    "cnn1d": lambda: convolutional(1, (9, 64, 128, 96), 5, 6),
    "cnn2d": lambda: convolutional(2, (1, 32, 64, 128), 3, 10),
    "lstm": lambda: recurrent(nn.LSTM),
    "gru": lambda: recurrent(nn.GRU),
}


def optimizer_of(net: Any, name: str) -> Any:
    """As the bundle has it; fused, which is the faster form."""
    if name == "sgd":
        return torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    return torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.0, fused=True)


def stepper(order: dict[str, Any]) -> Callable[[Any, Any], None]:
    net, forward = NETWORKS[order["model"]]()
    optimizer, loss_of = optimizer_of(net, order["optimizer"]), nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = loss_of(forward(x), y)
        loss.backward()
        optimizer.step()
        float(loss.detach())

    return step


def main() -> None:
    order = json.loads(sys.stdin.readline())
    torch.set_num_threads(order["threads"])
    with np.load(order["batches"]) as file:
        xs = file["x"].reshape(*file["x"].shape[:2], *order["row"])
        data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(xs, file["y"], strict=True)]
    step = stepper(order)
    for line in sys.stdin:
        began = time.perf_counter()
        for x, y in islice(cycle(data), int(line)):
            step(x, y)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
