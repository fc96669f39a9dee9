"""A sensor gateway as a process of its own: publishes a recorded stream at QoS 1, then ends.

`python tests/publisher.py PORT FILE.npz ROWS KEYS RATE`: row i goes to `sensors/<i % KEYS>` as
`{"id": "<i>", "x": [...], "y": label}`, RATE rows a second.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


def main(port: int, path: str, rows: int, keys: int, rate: float) -> None:
    with np.load(path, allow_pickle=False) as data:
        x, y = data["X"][:rows].astype(float).tolist(), data["y"][:rows].tolist()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(200)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    last, began = None, time.monotonic()
    for i, (values, label) in enumerate(zip(x, y, strict=True)):
        payload = json.dumps({"id": str(i), "x": values, "y": int(label)})
        last = client.publish(f"sensors/{i % keys}", payload, qos=1)
        if i % 50 == 49:
            time.sleep(max(0.0, began + i / rate - time.monotonic()))
        if i % 500 == 499:
            last.wait_for_publish(30)
    if last is not None:
        last.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
