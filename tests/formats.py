"""The same sample message in every format that a stream can have."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import msgpack
import numpy as np

from edged.config import StreamConfig
from edged.mqtt.sparkplug.payload import DOUBLE, INT64, STRING, Metric, SparkplugWire

FEATURES = ("temp", "vib.x", "vib.y")
TS = 1_700_000_000.25
TOPIC = "sensors/press-7"
NODE = "spBv1.0/plant/{}/press-7"
SENML = {
    "bn": -2,
    "bt": -3,
    "n": 0,
    "v": 2,
    "vs": 3,
    "t": 6,
    "s": 5,
    "u": 1,
    "bv": -5,
    "vb": 4,
    "bver": -1,
    "bs": -6,
}
NAMED: dict[str, Any] = {
    "features": list(FEATURES), "classes": ["ok", "worn"], "label": "state", "id": "part",
}  # fmt: skip
PLAIN: dict[str, Any] = {"features": 3, "key": "topic:1"}

STREAMS: dict[str, dict[str, Any]] = {
    "json": {**NAMED, "key": "machine", "ts": "when"},
    "cbor": {**NAMED, "key": "machine", "ts": "when"},
    "msgpack": {**NAMED, "key": "machine", "ts": "when"},
    "influx": {"features": ["fields.temp", "fields.vib_x", "fields.vib_y"], "classes": ["ok", "worn"],
               "label": "fields.state", "id": "tags.part", "key": "tags.machine", "ts": "timestamp"},
    "csv": {**NAMED, "key": "machine", "ts": "when",
            "columns": ["machine", "when", *FEATURES, "state", "part", "remark"]},
    "senml": {**NAMED, "key": "machine"},
    "senml-cbor": {**NAMED, "key": "machine"},
    "sparkplug": {**NAMED, "key": "machine", "topic": "spBv1.0/#"},
    "float32": PLAIN,
    "float16": {**PLAIN, "byte_order": "big"},
    "int16": PLAIN,
}  # fmt: skip

wire = SparkplugWire("tests")


def stream(name: str, **more: Any) -> StreamConfig:
    """The stream whose messages `written` writes."""
    return StreamConfig(codec=name.removesuffix("-cbor"), **{**STREAMS[name], **more})


def topic(name: str) -> str:
    """Where they come from."""
    return NODE.format("DDATA") + "/vib" if name == "sparkplug" else TOPIC


def written(name: str, values: list[float], state: str | None = "worn", no: str | None = "a-1") -> bytes:
    """One message with all there is; without `state` or `no` they are not in it."""
    if name in ("float32", "float16", "int16"):
        order = ">" if name == "float16" else "<"
        return np.array(values).astype(np.dtype(name).newbyteorder(order)).tobytes()  # type: ignore[arg-type]
    if name == "influx":
        return line(values, state, no)
    more = {name: value for name, value in (("state", state), ("part", no)) if value is not None}
    message: dict[str, Any] = {
        "machine": "m1",
        "when": TS,
        **dict(zip(FEATURES, values, strict=True)),
        **more,
    }
    if name == "csv":
        cells = ["m1", TS, *values, state or "", no or "", '"a, b"']
        return ",".join(map(str, cells)).encode()
    if name.startswith("senml"):
        del message["when"]
        return pack(message, cbor=name.endswith("cbor"))
    if name == "sparkplug":
        del message["when"]
        return data(message, 2)
    writers = {"json": lambda m: json.dumps(m).encode(), "cbor": cbor2.dumps, "msgpack": msgpack.packb}
    return bytes(writers[name](message))


def line(values: list[float], state: str | None, no: str | None) -> bytes:
    """A line of InfluxDB's protocol."""
    tags = "m,machine=m1" + ("" if no is None else f",part={no}")
    fields = [f"{name.replace('.', '_')}={value}" for name, value in zip(FEATURES, values, strict=True)]
    fields += [] if state is None else [f'state="{state}"']
    return f"{tags} {','.join(fields)} {round(TS * 1000)}000000".encode()


def pack(message: dict[str, Any], *, cbor: bool) -> bytes:
    """A SenML pack of one reading."""
    records = [{"n": n, "vs" if isinstance(v, str) else "v": v} for n, v in message.items()]
    return senml([{"bt": TS, **records[0]}, *records[1:]], cbor=cbor)


def senml(records: list[dict[str, Any]], *, cbor: bool) -> bytes:
    """Records as they are, in either form."""
    if not cbor:
        return json.dumps(records).encode()
    return bytes(cbor2.dumps([{SENML.get(n, n): value for n, value in record.items()} for record in records]))


def typed(value: Any) -> int:
    """Sparkplug's type for a value."""
    return STRING if isinstance(value, str) else INT64 if isinstance(value, int) else DOUBLE


ALIASES = {name: number for number, name in enumerate(("machine", "state", "part", *FEATURES, "other"), 1)}


def birth(kind: str = "DBIRTH", seq: int = 1, **values: Any) -> bytes:
    """The birth of a device that `data` belongs to."""
    first: dict[str, Any] = (
        dict.fromkeys(FEATURES, 0.0) | {"machine": "m1", "state": None, "part": None} | values
    )
    metrics = [
        Metric(n, v, ALIASES.get(n), None, STRING if v is None else typed(v)) for n, v in first.items()
    ]
    return wire.write([*metrics, Metric("bdSeq", 0, None, None, INT64)], ts=TS, seq=seq)


def data(values: dict[str, Any], seq: int, ts: float = TS, *, historical: bool = False) -> bytes:
    """Metrics that have changed, by alias."""
    metrics = [Metric("", v, ALIASES[n], ts, typed(v), historical) for n, v in values.items()]
    return wire.write(metrics, ts=ts, seq=seq)


def introductions(name: str) -> list[tuple[str, bytes]]:
    """What must have been heard before `written` means anything."""
    if name != "sparkplug":
        return []
    return [(NODE.format("NBIRTH"), birth("NBIRTH", 0)), (NODE.format("DBIRTH") + "/vib", birth())]
