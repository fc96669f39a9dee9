"""A broker that keeps few messages in flight, and a group commit that would wait for more of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

ROWS = 800


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_broker_with_one_message_in_flight_is_served_at_its_speed(
    tmp_path: Path, make_broker: MakeBroker, protocol: str
) -> None:
    broker = make_broker("allow_anonymous true", "max_inflight_messages 1")
    device = Device(
        tmp_path,
        broker.port,
        {"features": 2, "classes": 2, "label": "y"},
        mqtt={"host": "127.0.0.1", "port": broker.port, "protocol": protocol}
        | ({"receive_maximum": 1} if protocol == "5" else {}),
        training={"enabled": False},
    )
    with running(device, broker.port) as listener:
        for i in range(ROWS):
            listener.send("sensors/a", {"x": [i, 1.0], "y": i % 2})
        # Else it would be one message in 5 s, `storage.commit_delay`, or in 40 ms, a delayed acknowledgement.
        listener.wait(lambda: len(listener.messages["predictions"]) == ROWS, 30.0)
        assert listener.request("status")["data"]["samples"] == ROWS
