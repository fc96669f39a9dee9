"""The devices of a round as the nodes of Flower's `Grid`: strategies talk to them as to any others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from edged.domain.training.weight_coding import Floats, Weights
    from edged.fleet.rules.aggregation import AdmittedUpdate
    from edged.fleet.rules.layout import Layout


def record_of(weights: Weights) -> Any:
    """Convert weights to Flower's record of arrays."""
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


class MqttGrid(Grid):  # type: ignore[misc]
    """Flower's Grid over the updates of a closed round, which came over MQTT.

    The retained topics of the round have told all devices what a strategy asks of its nodes. Each update has
    been admitted and is stored on the disk: replies are available at once.

    Nodes are numbered from 1 in the order of `contributions`, one a device, and reply in it, which makes sums
    the same bit for bit. `start` is the fleet's model `(layout.size,)`, to which updates are added.
    """

    def __init__(self, contributions: Sequence[AdmittedUpdate], layout: Layout, start: Floats) -> None:
        self._contributions, self._layout, self._start = contributions, layout, start
        self._asked: dict[str, Any] = {}
        self._run: Any = None

    def set_run(self, run: Any) -> None:
        """Set the run; a grid has one."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run of this grid."""
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """List the nodes: one for each device whose update counts."""
        return list(range(1, len(self._contributions) + 1))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Accept messages; returns the ids for `pull_messages`."""
        ids = []
        for message in messages:
            ids.append(str(len(self._asked) + 1))
            self._asked[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Return the replies to messages, in the order of the nodes."""
        asked = [self._asked.pop(number) for number in message_ids]
        return [self._reply(message) for message in sorted(asked, key=lambda m: m.metadata.dst_node_id)]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:  # noqa: ARG002
        """Return the replies to messages at once."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Any) -> Any:
        contribution = self._contributions[message.metadata.dst_node_id - 1]
        change = self._layout.change(contribution.row) * np.float32(contribution.factor)
        content = RecordDict({
            "arrays": record_of(self._layout.weights(self._start + change)),
            "metrics": MetricRecord({"num-examples": contribution.samples}),
        })  # fmt: skip
        return Message(content=content, reply_to=message)
