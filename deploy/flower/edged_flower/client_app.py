"""The ClientApp: has the daemon of its node train from Flower's arrays, and judge them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from edged_flower.daemon import Daemon, DeclinedError, Weights

app = ClientApp()


@app.query()
def initial(message: Message, context: Context) -> Message:
    """Reply with the weights that the device's bundle begins with; they are the same on every device."""
    return _reply(message, lambda: {"arrays": _arrays(Daemon(context).initial())})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Have the daemon train from the weights of the message, and reply with the new ones."""

    def work() -> dict[str, Any]:
        weights = _weights(message)
        trained, about = Daemon(context).train(weights, _config(message))
        # Flower pairs arrays by their position: keep the order of the message.
        return {"arrays": _arrays({name: trained[name] for name in weights}), "metrics": _metrics(about)}

    return _reply(message, work)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Have the daemon judge the weights of the message on its held-out samples."""

    def work() -> dict[str, Any]:
        about = Daemon(context).evaluate(_weights(message), _config(message))
        return {"metrics": _metrics(about)}

    return _reply(message, work)


def _reply(message: Message, work: Callable[[], dict[str, Any]]) -> Message:
    """Reply with what `work` returns, or with an Error if the device declines: strategies leave it out."""
    try:
        return Message(RecordDict(work()), reply_to=message)
    except DeclinedError as problem:
        return Message(Error(problem.code, str(problem)), reply_to=message)


def _weights(message: Message) -> Weights:
    (arrays,) = message.content.array_records.values()
    return {name: array.numpy() for name, array in arrays.items()}


def _config(message: Message) -> dict[str, Any]:
    return {key: value for record in message.content.config_records.values() for key, value in record.items()}


def _arrays(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


def _metrics(about: dict[str, Any]) -> MetricRecord:
    metrics = MetricRecord({"num-examples": int(about["samples"])})
    for name in ("loss", "accuracy", "error", "taken"):
        if name in about:
            metrics[name] = float(about[name])
    return metrics
