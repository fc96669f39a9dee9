"""What reading a message costs in each format, beside JSON: 16 numbers, a label, a key and a time.

Where a format has no fields (raw arrays), the numbers alone. One thread, processor time, best of several.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import cbor2
import msgpack
import numpy as np
import zstandard
from output import Row, finish, options

from edged.config import StreamConfig
from edged.mqtt.codecs import sample_codec
from edged.mqtt.sparkplug.payload import DOUBLE, INT64, STRING, Metric, MetricValue, SparkplugWire

WIDTH = 16
VALUES = [round(0.123456 * i - 1, 6) for i in range(WIDTH)]
NAMES = [f"ch{i}" for i in range(WIDTH)]
TS = 1_700_000_000.25
FIELDS: dict[str, Any] = {"classes": 2, "label": "y", "key": "machine", "ts": "ts"}
MESSAGE: dict[str, Any] = {"machine": "m1", "ts": TS, "x": VALUES, "y": 1}
TOPIC = "sensors/m1"
PLACE = "spBv1.0/plant/{}/m1"


def senml(*, cbor: bool) -> bytes:
    """A pack with a record for each number."""
    labels = {"bn": -2, "bt": -3, "n": 0, "v": 2}
    records: list[dict[str, Any]] = [{"n": name, "v": v} for name, v in zip(NAMES, VALUES, strict=True)]
    records = [{"bn": "m1/", "bt": TS, **records[0]}, *records[1:], {"n": "y", "v": 1}]
    if not cbor:
        return json.dumps(records).encode()
    return bytes(cbor2.dumps([{labels[n]: v for n, v in record.items()} for record in records]))


def sparkplug() -> tuple[bytes, bytes]:
    """A birth, and a message in which every metric has changed."""
    wire = SparkplugWire("benchmark")
    all_of_it: list[tuple[str, MetricValue]] = [*zip(NAMES, VALUES, strict=True), ("y", 1), ("machine", "m1")]
    metrics = [
        Metric(name, v, alias, TS, {int: INT64, str: STRING}.get(type(v), DOUBLE))
        for alias, (name, v) in enumerate(all_of_it, 1)
    ]
    birth = wire.write(metrics, ts=TS, seq=0)
    return birth, wire.write([m._replace(name="") for m in metrics], ts=TS, seq=None)


def cases() -> dict[str, tuple[StreamConfig, list[tuple[str, bytes]], str, bytes]]:
    """By name: the stream, what must be heard before, and the topic and payload of the message."""
    plain = StreamConfig(features=WIDTH, **FIELDS)
    text = json.dumps(MESSAGE).encode()
    csv_columns = ["machine", "ts", "x", "y"]
    csv = ",".join(map(str, ["m1", TS, *VALUES, 1])).encode()
    pairs = ",".join(f"{name}={value}" for name, value in zip((*NAMES, "y"), (*VALUES, 1), strict=True))
    line = f"m,machine=m1 {pairs} {round(TS * 1000)}000000".encode()
    influx: dict[str, Any] = {"classes": 2, "label": "fields.y", "key": "tags.machine", "ts": "timestamp",
                              "features": [f"fields.{name}" for name in NAMES]}  # fmt: skip
    named = {**FIELDS, "ts": None, "features": [*NAMES]}
    birth, data = sparkplug()
    found: dict[str, tuple[StreamConfig, list[tuple[str, bytes]], str, bytes]] = {
        "json": (plain, [], TOPIC, text),
        "json, zstd": (of(plain, compression="zstd"), [], TOPIC, zstandard.ZstdCompressor().compress(text)),
        "cbor": (of(plain, codec="cbor"), [], TOPIC, cbor2.dumps(MESSAGE)),
        "msgpack": (of(plain, codec="msgpack"), [], TOPIC, msgpack.packb(MESSAGE)),
        "influx": (StreamConfig(codec="influx", **influx), [], TOPIC, line),
        "csv": (of(plain, codec="csv", columns=csv_columns), [], TOPIC, csv),
        "senml": (StreamConfig(codec="senml", **{**named, "key": "bn"}), [], TOPIC, senml(cbor=False)),
        "senml, cbor": (StreamConfig(codec="senml", **{**named, "key": "bn"}), [], TOPIC, senml(cbor=True)),
        "sparkplug": (
            StreamConfig(codec="sparkplug", topic="spBv1.0/#", **named),
            [(PLACE.format("NBIRTH"), birth)], PLACE.format("NDATA"), data,
        ),
    }  # fmt: skip
    for name in ("float32", "float16", "int16"):
        stream = StreamConfig(features=WIDTH, codec=name)
        found[name] = (stream, [], TOPIC, np.array(VALUES, name).tobytes())
    return found


def of(stream: StreamConfig, **other: Any) -> StreamConfig:
    """The same stream with other settings."""
    return StreamConfig(**{**stream.model_dump(exclude_unset=True), **other})


def microseconds(
    decode: Callable[[str, bytes], Any], topic: str, payload: bytes, calls: int, rounds: int
) -> float:
    """Of one message, in the best round."""
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(calls):
            decode(topic, payload)
        best = min(best, time.thread_time() - started)
    return best / calls * 1e6


def measure(calls: int, rounds: int) -> list[Row]:
    """One row a format."""
    rows: list[Row] = []
    for name, (stream, before, topic, payload) in cases().items():
        codec = sample_codec(stream)
        for message in before:
            codec.decode(*message)
        us = microseconds(codec.decode, topic, payload, calls, rounds)
        ratio = us / rows[0]["us"] if rows else 1.0
        rows.append(
            {"what": name, "bytes": len(payload), "us": round(us, 2), "ratio_to_json": round(ratio, 2)}
        )
    return rows


def line(row: Row) -> str:
    """A row for people."""
    return f"{row['what']:<12} {row['bytes']:>5} B {row['us']:>8.2f} µs   {row['ratio_to_json']:.2f} of JSON"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    finish("formats", measure(args.calls, args.rounds), args, line)


if __name__ == "__main__":
    main()
