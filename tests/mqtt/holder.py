"""A client that takes messages and never acknowledges them: `python -m tests.mqtt.holder PORT ID`.

It prints `mid payload` for each message, and is meant to be killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edged import logs
from edged.config import MqttConfig
from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage


def show(delivery: ReceivedMessage) -> None:
    sys.stdout.write(f"{delivery.mid} {delivery.payload.decode()}\n")
    sys.stdout.flush()


def main(port: int, client_id: str) -> None:
    logs.configure()
    session = Session(
        MqttConfig(host="127.0.0.1", port=port), client_id=client_id, will=("held/status", b"gone", True)
    )
    session.subscribe(["held/data"], 1, show)
    session.start()
    if session.wait_ready(20.0):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
