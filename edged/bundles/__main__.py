"""`python -m edged.bundles`: the standard bundle of a stream, ordered by one JSON object on stdin.

Keys: `task` (classify, regress, reconstruct, forecast), `features`, `outputs`, `out`; optionally
`network` (mlp, cnn1d, gru, autoencoder), `window` (`[rows, channels]`), `hidden` (list),
`loss`, `label_smoothing` (a number, for classes), `optimizer`, `options` (an object: what the optimizer
takes), `seed`, `int8` (true: a quantised form too) and `statistics` (`mean`, `scale`, `target_mean`,
`target_scale`, each a list, or null). Without statistics the graph gets neutral ones, to be overwritten by
the first training run. One JSON line on stdout tells what was built; an error is one line on stderr, and its
exit code the program's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from edged.bundles import require
from edged.errors import ConfigError, EdgedError

KEYS = {
    "task", "features", "outputs", "network", "window", "hidden", "loss", "optimizer", "options",
    "label_smoothing", "statistics", "int8", "seed", "out",
}  # fmt: skip
NETWORKS = ("mlp", "cnn1d", "gru", "autoencoder")
LOSSES = {"classify": "cross_entropy", "regress": "mse", "forecast": "mse", "reconstruct": "mse"}


def parse_order(text: str) -> dict[str, Any]:
    """The order with defaults filled in; ConfigError names what is wrong."""
    try:
        order = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ConfigError("expected one JSON object", where="stdin") from problem
    if not isinstance(order, dict) or order.keys() - KEYS or not {"task", "features", "out"} <= order.keys():
        raise ConfigError(
            "expected a JSON object", where="stdin", remedy=f"its keys: {', '.join(sorted(KEYS))}"
        )
    if order["task"] not in LOSSES:
        raise ConfigError(
            f"there is no task {order['task']!r}", where="task", remedy=f"one of {', '.join(LOSSES)}"
        )
    order["outputs"] = order.get("outputs", order["features"] if order["task"] == "reconstruct" else 1)
    for key in ("features", "outputs"):
        _check_count(key, order[key])
    order["hidden"] = order.get("hidden", [64, 32])
    if not isinstance(order["hidden"], list):
        raise ConfigError("expected a list of layer sizes", where="hidden")
    for size in order["hidden"]:
        _check_count("hidden", size)
    usual = "autoencoder" if order["task"] == "reconstruct" else "mlp"
    if order.setdefault("network", usual) not in NETWORKS:
        raise ConfigError(
            f"there is no network {order['network']!r}",
            where="network",
            remedy=f"one of {', '.join(NETWORKS)}",
        )
    if not isinstance(order.get("options", {}), dict):
        raise ConfigError("expected an object", where="options")
    _check_window(order.setdefault("window", [order["features"], 1]), order["features"])
    return order


def _check_window(window: Any, features: int) -> None:
    if not isinstance(window, list) or len(window) != 2:
        raise ConfigError("expected [rows, channels]", where="window")
    for size in window:
        _check_count("window", size)
    if window[0] * window[1] != features:
        raise ConfigError(f"{window[0]} x {window[1]} are not the {features} features", where="window")


def _check_count(key: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"expected a whole number above 0, got {value!r}", where=key)


def build_standard(order: dict[str, Any]) -> dict[str, Any]:
    """Build what a parsed order asks for; the result as it is printed."""
    require()
    # Imported here, so that a wrong order is answered before the heavy packages are loaded.
    from edged.bundles.build import build
    from edged.bundles.export.forms import RequestedForms
    from edged.bundles.graph.optimizers import Optimizer

    began = time.monotonic()
    notes: list[str] = []
    bundle = build(
        network_of(order),
        Path(order["out"]),
        loss=_loss(order),
        optimizer=Optimizer.of(order.get("optimizer") or "adamw", **order.get("options", {})),
        standardise=_statistics(order),
        seed=int(order.get("seed") or 0),
        forms=RequestedForms(int8=bool(order.get("int8"))),
        note=notes.append,
    )
    seconds = round(time.monotonic() - began, 3)
    return {
        "bundle": str(bundle.path),
        "fingerprint": bundle.fingerprint,
        "loss": bundle.loss,
        "engines": bundle.engines,
        "notes": notes,
        "seconds": seconds,
    }


def _loss(order: dict[str, Any]) -> Any:
    from edged.bundles.losses.cross_entropy import CrossEntropy

    smoothing = float(order.get("label_smoothing") or 0)
    return CrossEntropy(smoothing=smoothing) if smoothing else order.get("loss") or LOSSES[order["task"]]


def network_of(order: dict[str, Any]) -> Any:
    """The standard network of a parsed order, as an ONNX model."""
    from edged.bundles.graph.templates import autoencoder, cnn1d, gru, mlp

    features, hidden, seed = order["features"], order["hidden"], int(order.get("seed") or 0)
    if order["network"] != "autoencoder":
        output = "logits" if order["task"] == "classify" else "y"
        if order["network"] == "mlp":
            return mlp(features, order["outputs"], hidden, output=output, seed=seed)
        make = cnn1d if order["network"] == "cnn1d" else gru
        rows, channels = order["window"]
        return make((rows, channels), order["outputs"], hidden, output=output, seed=seed)
    # The last layer given is the code; it must be narrower than the input, or nothing has to be learned.
    code = min(hidden[-1] if hidden else 8, max(1, features // 2))
    return autoencoder(features, hidden[:-1], code, seed=seed)


def _statistics(order: dict[str, Any]) -> Any:
    from edged.bundles.source.standardise import Statistics

    given, reconstruct = order.get("statistics"), order["task"] == "reconstruct"
    if isinstance(given, dict):
        return Statistics.of(given, reconstruct=reconstruct)
    if given is not None:
        raise ConfigError("expected an object with mean and scale, or null", where="statistics")
    targets = order["outputs"] if order["task"] in ("regress", "forecast") else None
    return Statistics.identity(order["features"], targets, reconstruct=reconstruct)


def main() -> int:
    """Read the order, build, answer; the exit code."""
    try:
        answer = build_standard(parse_order(sys.stdin.read()))
    except EdgedError as problem:
        sys.stderr.write(problem.line() + "\n")
        return problem.exit_code
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
