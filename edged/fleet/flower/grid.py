"""The devices of a round as the nodes of Flower's `Grid`: strategies talk to them as to any others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.rules.aggregation import AdmittedUpdate


def record_of(weights: Weights) -> Any:
    """Weights as Flower has them."""
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


class MqttGrid(Grid):  # type: ignore[misc]
    """A Grid whose transport is MQTT.

    What a strategy asks of its nodes is what the retained topics of the round have told all devices before
    it closed. Each update has been admitted and lies on the disk: the reply to a message is there at once.

    Parameters
    ----------
    contributions
        One a device. Nodes are numbered from 1 in their order, and reply in it, which makes sums the same bit
        for bit.
    weights_of
        The weights of a device after its training.
    """

    def __init__(
        self, contributions: Sequence[AdmittedUpdate], weights_of: Callable[[AdmittedUpdate], Weights]
    ) -> None:
        self._contributions, self._weights_of = contributions, weights_of
        self._asked: dict[str, Any] = {}
        self._run: Any = None

    def set_run(self, run: Any) -> None:
        """Note the run; there is one."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run that was set."""
        return self._run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All devices whose update counts."""
        return list(range(1, len(self._contributions) + 1))

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Take messages; the ids by which replies are pulled."""
        ids = []
        for message in messages:
            ids.append(str(len(self._asked) + 1))
            self._asked[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """The replies to messages, in the order of the nodes."""
        asked = [self._asked.pop(number) for number in message_ids]
        return [self._reply(message) for message in sorted(asked, key=lambda m: m.metadata.dst_node_id)]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:  # noqa: ARG002
        """The replies to messages; nothing has to be waited for."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Any) -> Any:
        contribution = self._contributions[message.metadata.dst_node_id - 1]
        content = RecordDict({
            "arrays": record_of(self._weights_of(contribution)),
            "metrics": MetricRecord({"num-examples": contribution.samples}),
        })  # fmt: skip
        return Message(content=content, reply_to=message)
