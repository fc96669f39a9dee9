"""More networks for PyTorch to export and train: a kind of layer each that `make_trained` does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bundles.exported.make import nn, torch


class States(nn.Module):  # type: ignore[misc]
    """Recurrent layers and a classifier of the mean of their states."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 4, batch_first=True, **options)
        self.head = nn.Linear(4 * (1 + self.rnn.bidirectional), 3)

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, time, 3)."""
        return self.head(self.rnn(x)[0].mean(1))


class Attention(nn.Module):  # type: ignore[misc]
    """Attention with two heads, a shortcut and a layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, time, 8)."""
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.norm(x + mixed).mean(1))


class Between(nn.Module):  # type: ignore[misc]
    """A dense layer, a function, and another dense layer."""

    def __init__(self, function: Callable[..., Any], inputs: int, width: int, *shape: int) -> None:
        super().__init__()
        self.first, self.head, self.function = nn.Linear(inputs, 6), nn.Linear(width, 3), function
        self.more = nn.Parameter(0.3 * torch.ones(*shape)) if shape else None

    def forward(self, x: Any) -> Any:
        """Logits for x (batch, ..., inputs)."""
        h = self.first(x)
        return self.head(self.function(h) if self.more is None else self.function(h, self.more))


def _volumes() -> Any:
    return nn.Sequential(nn.Conv3d(1, 3, 2), nn.Tanh(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(3, 3))


def _larger(**options: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Upsample(scale_factor=2, **options),
        nn.Conv2d(2, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 3),
    )  # fmt: skip


def _shuffled() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.PixelShuffle(2), nn.AvgPool2d(3, 2, 1), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


def _activations() -> Any:
    layers: list[Any] = []
    for activation in (nn.CELU(0.7), nn.Softsign(), nn.Hardtanh(), nn.LogSigmoid(), nn.GLU(), nn.Softmax(1)):
        layers += [nn.Linear(5, 10 if isinstance(activation, nn.GLU) else 5), activation]
    return nn.Sequential(*layers, nn.Linear(5, 3))


def _rms(h: Any, gain: Any) -> Any:
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5) * gain


def _bilinear(h: Any, table: Any) -> Any:
    return torch.einsum("bi,oij,bj->bo", h, table, h)


# Network, row, loss, whether its BatchNorm is frozen: as `make_trained.NETWORKS`.
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], str, bool]] = {
    "rnn": (lambda: States("RNN"), (5, 3), "cross_entropy", False),
    "rnn_relu_both_ways": (
        lambda: States("RNN", nonlinearity="relu", bidirectional=True), (5, 3), "cross_entropy", False,
    ),
    "lstm_both_ways": (
        lambda: States("LSTM", num_layers=2, bidirectional=True), (5, 3), "cross_entropy", False,
    ),
    "gru_both_ways": (lambda: States("GRU", bidirectional=True), (5, 3), "cross_entropy", False),
    "attention": (Attention, (4, 8), "cross_entropy", False),
    "volumes": (_volumes, (1, 4, 4, 4), "cross_entropy", False),
    "bilinear_grid": (lambda: _larger(mode="bilinear"), (1, 4, 4), "cross_entropy", False),
    "nearest_grid": (lambda: _larger(mode="nearest"), (1, 4, 4), "cross_entropy", False),
    "shuffled": (_shuffled, (1, 4, 4), "cross_entropy", False),
    "more_activations": (_activations, (5,), "cross_entropy", False),
    "root_mean_square": (lambda: Between(_rms, 5, 6, 6), (5,), "cross_entropy", False),
    "bilinear_form": (lambda: Between(_bilinear, 5, 4, 4, 6, 6), (5,), "cross_entropy", False),
    "running_sum": (lambda: Between(lambda h: torch.cumsum(h, 1), 5, 6), (5,), "cross_entropy", False),
    "largest": (lambda: Between(lambda h: h.topk(3, 1).values, 5, 3), (5,), "cross_entropy", False),
    "log_sum_exp": (lambda: Between(lambda h: torch.logsumexp(h, 1), 5, 6), (4, 5), "cross_entropy", False),
    "norms": (lambda: Between(lambda h: h / h.norm(dim=1, keepdim=True), 5, 6), (5,), "cross_entropy", False),
}  # fmt: skip
