"""Trains small models with PyTorch, for engines to come to the same weights: reference figures.

`python -m tests.bundles.exported.make_trained [NAME ...]` from the root, with torch and onnx installed;
`--into FOLDER` writes elsewhere, and `--dynamo` exports with PyTorch's newer exporter. Each
`trained_NAME.onnx` is a model as PyTorch's classic exporter writes it before training; `trained_NAME.npz`
holds batches (`x`, `y`) that take turns, and every weight and running statistic that training changed, as
the export of the trained model has it: `sgd.1/WEIGHT` after one step of gradient descent,
`adamw.10/WEIGHT` after ten of AdamW; `--steps` keeps others. Networks of `tests/pytorch/networks.py` can be
named, too. Rates are in `RATES`; the rest is PyTorch's default.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.bundles.exported.make import HERE, nn, torch
from tests.pytorch.networks import NETWORKS as MORE

RATES = {"sgd": 0.1, "adamw": 0.01}
# Over hundreds of steps rounding grows; smaller steps keep it small.
LONG, SLOWER = 100, 0.1
BATCHES, ROWS, KEPT = 5, 4, (1, 10)


class LastState(nn.Module):  # type: ignore[misc]
    """A recurrent layer and a classifier of its last state."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, time, 3)."""
        _, state = self.rnn(x)
        return self.head((state[0] if isinstance(state, tuple) else state)[0])


class Encoder(nn.Module):  # type: ignore[misc]
    """PyTorch's own encoder layer, without dropout, and a classifier of the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            8, 2, dim_feedforward=12, dropout=0.0, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(8, 3)
        # Attention does not change with the bias of its keys: the gradient is rounding, which AdamW enlarges.
        self.layer.self_attn.in_proj_bias.requires_grad_(requires_grad=False)

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, time, 8)."""
        return self.head(self.layer(x).mean(1))


def _batchnorm() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.SiLU(), nn.BatchNorm1d(4), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(32, 6, bias=False), nn.BatchNorm1d(6, momentum=0.3), nn.Tanh(), nn.Linear(6, 3),
    )  # fmt: skip


def _groupnorm() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Conv1d(4, 4, 3, stride=2, padding=1, bias=False), nn.InstanceNorm1d(4, affine=True), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def _average() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.Tanh(), nn.AvgPool1d(2),
        nn.Conv1d(4, 4, 3, padding=1), nn.Tanh(), nn.AvgPool1d(3, stride=1, padding=1),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def _activations() -> Any:
    layers: list[Any] = []
    for activation in (
        nn.ELU(), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Softplus(), nn.PReLU(), nn.Mish(), nn.GELU()
    ):  # fmt: skip
        layers += [nn.Linear(5, 5), activation]
    return nn.Sequential(*layers, nn.Linear(5, 3))


def _convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.SiLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU6(),
        nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), nn.LeakyReLU(0.1), nn.MaxPool2d(3, 2, padding=1),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def _cnn1d() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def _cnn2d() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(96, 3),
    )  # fmt: skip


class Separable(nn.Module):  # type: ignore[misc]
    """A depthwise-separable block with a shortcut (Sandler et al. 2018), and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pointwise = nn.Conv2d(4, 4, 1, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, 2, 8, 8)."""
        x = nn.functional.relu6(self.stem(x))
        x = x + self.pointwise(nn.functional.relu6(self.norm(self.depthwise(x))))
        return self.head(x.mean((2, 3)))


def _autoencoder() -> Any:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)
    )


def _decoder() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(),
        nn.ConvTranspose1d(4, 2, 4, stride=2, padding=1), nn.Flatten(),
    )  # fmt: skip


# Network, row, loss, whether its BatchNorm is frozen.
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], str, bool]] = {
    "batchnorm": (_batchnorm, (2, 8), "cross_entropy", False),
    "batchnorm_frozen": (_batchnorm, (2, 8), "cross_entropy", True),
    "groupnorm": (_groupnorm, (2, 8), "cross_entropy", False),
    "average": (_average, (2, 8), "cross_entropy", False),
    "activations": (_activations, (5,), "cross_entropy", False),
    "convolutions": (_convolutions, (2, 8, 8), "cross_entropy", False),
    "decoder": (_decoder, (2, 8), "mse", False),
    "lstm": (lambda: LastState("LSTM"), (5, 3), "cross_entropy", False),
    "gru": (lambda: LastState("GRU"), (5, 3), "cross_entropy", False),
    "encoder": (Encoder, (4, 8), "cross_entropy", False),
    "mlp": (_mlp, (6,), "cross_entropy", False),
    "cnn1d": (_cnn1d, (2, 12), "cross_entropy", False),
    "cnn2d": (_cnn2d, (1, 8, 8), "cross_entropy", True),
    "separable": (Separable, (2, 8, 8), "cross_entropy", True),
    "autoencoder": (_autoencoder, (6,), "mse", False),
}


def exported(module: Any, row: tuple[int, ...], *, dynamo: bool = False) -> onnx.ModelProto:
    """The model in inference mode, all batches allowed, every weight its own."""
    modes, file = {part: part.training for part in module.modules()}, io.BytesIO()
    x, ends = torch.zeros(2, *row), {"input_names": ["input"], "output_names": ["output"]}
    if dynamo:
        shapes = ({0: torch.export.Dim("rows")},)
        made = torch.onnx.export(
            module.eval(), (x,), dynamo=True, dynamic_shapes=shapes, verbose=False, **ends
        )
        made.save(file)
    else:
        # Preserved is the evaluation mode without folding BatchNorm into the convolution before it.
        torch.onnx.export(
            module.eval(), x, file, dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.PRESERVE,
            dynamic_axes={"input": {0: "rows"}, "output": {0: "rows"}}, **ends,
        )  # fmt: skip
    for part, training in modes.items():
        part.training = training
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        # Where the code lay that made a node is of no use here.
        del node.metadata_props[:]
        node.doc_string = ""
    return model


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Float32 initializers by name."""
    read = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: value for name, value in read.items() if value.dtype == np.float32}


def make(name: str, folder: Path, kept: tuple[int, ...], *, dynamo: bool = False) -> None:
    """Write both files of one network, its weights after each of the `kept` numbers of steps."""
    network, row, loss, frozen = (NETWORKS | MORE)[name]
    torch.manual_seed(len(name))
    module = network()
    for key, value in module.state_dict().items():
        # As after some training: the exporter makes one tensor of two that are the same.
        if value.is_floating_point():
            noise = torch.rand_like if "running_var" in key else torch.randn_like
            value.add_(noise(value), alpha=0.1)
    initial = {key: value.clone() for key, value in module.state_dict().items()}
    model = exported(module, row, dynamo=dynamo)
    before = weights(model)
    onnx.save(model, str(folder / f"trained_{name}.onnx"))
    x = torch.randn(BATCHES, ROWS, *row)
    y = torch.randint(0, 3, (BATCHES, ROWS)) if loss == "cross_entropy" else x.reshape(BATCHES, ROWS, -1)
    slower = SLOWER if max(kept) >= LONG else 1.0
    found = {"x": x.numpy(), "y": y.numpy(), "slower": np.float64(slower)}
    for optimizer in RATES:
        module.load_state_dict(initial)
        for steps, after in train(module, (x, y), loss, optimizer, kept, slower, frozen=frozen):
            for weight, value in weights(exported(after, row, dynamo=dynamo)).items():
                if not np.array_equal(value, before[weight]):
                    found[f"{optimizer}.{steps}/{weight}"] = value
    np.savez_compressed(folder / f"trained_{name}.npz", **found)


def train(
    module: Any,
    data: tuple[Any, Any],
    loss: str,
    optimizer: str,
    kept: tuple[int, ...],
    slower: float,
    *,
    frozen: bool,
) -> Any:
    """Train on one batch after the other; steps and module where weights are to be kept."""
    module.train()
    judge = getattr(nn.functional, loss + ("_loss" if loss == "mse" else ""))
    for part in module.modules():
        if frozen and isinstance(part, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  all dimensions
            part.eval().requires_grad_(False)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    update = kind([p for p in module.parameters() if p.requires_grad], lr=slower * RATES[optimizer])
    for step in range(1, max(kept) + 1):
        x, y = (values[(step - 1) % BATCHES] for values in data)
        update.zero_grad()
        judge(module(x), y).backward()
        update.step()
        if step in kept:
            yield step, module


def main() -> None:
    """Make those that are named, or all."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", default=[], help=f"of {', '.join(NETWORKS)}")
    arguments.add_argument("--into", type=Path, default=HERE)
    arguments.add_argument("--dynamo", action="store_true")
    arguments.add_argument("--steps", type=int, nargs="*", default=KEPT)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    for name in given.names or NETWORKS:
        make(name, given.into, tuple(given.steps), dynamo=given.dynamo)


if __name__ == "__main__":
    main()
