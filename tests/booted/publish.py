"""Inside the container: publishes rows of a generated stream at QoS 1, from one row up to another.

`python publish.py PASSWORD FIRST LAST RATE`: row i goes to `sensors/<i % 4>` as
`{"id": "<i>", "x": [...], "y": label}`.
"""

from __future__ import annotations

import json
import random
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

WIDTH = 8
# Time for the broker to be back after a restart.
PATIENCE = 60.0


def row(number: int) -> dict[str, object]:
    """Two classes that a line parts."""
    noise = random.Random(number)
    x = [noise.gauss(0, 1) for _ in range(WIDTH)]
    return {"id": str(number), "x": x, "y": int(x[0] + x[1] + 0.3 * x[2] > 0)}


def main(password: str, first: int, last: int, rate: float) -> None:
    """Publish, and return when the broker has everything."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set("sensors", password)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1")
    client.loop_start()
    began, sent = time.monotonic(), []
    for number in range(first, last):
        sent.append(client.publish(f"sensors/{number % 4}", json.dumps(row(number)), qos=1))
        time.sleep(max(0.0, began + (number - first) / rate - time.monotonic()))
    for message in sent:
        message.wait_for_publish(PATIENCE)
    assert all(message.is_published() for message in sent)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
