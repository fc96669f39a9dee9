"""Sparkplug B on the wire: topics, and payloads in Protocol Buffers.

The messages are declared here, field by field, as far as edged uses them; numbers and types are those of
the definition that Eclipse Tahu publishes (sparkplug_b.proto) and of the Sparkplug 3.0 specification,
sections 4 and 6. What is not declared (metadata, properties, data sets, templates) is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from edged.errors import RejectedSampleError, required

NAMESPACE = "spBv1.0"
BDSEQ = "bdSeq"
REBIRTH = "Node Control/Rebirth"
SEQUENCE = 256  # seq and bdSeq count from 0 to 255

INT8, INT16, INT32, INT64 = 1, 2, 3, 4
DOUBLE, BOOLEAN, STRING = 10, 11, 12
_SIGNED = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}

# (name, number, type) with types as in descriptor.proto.
_DOUBLE, _FLOAT, _UINT64, _BOOL, _STRING, _MESSAGE, _BYTES, _UINT32 = 1, 2, 4, 8, 9, 11, 12, 13
_PAYLOAD_FIELDS = (("timestamp", 1, _UINT64), ("seq", 3, _UINT64), ("uuid", 4, _STRING), ("body", 5, _BYTES))
_METRIC_FIELDS = (
    ("name", 1, _STRING), ("alias", 2, _UINT64), ("timestamp", 3, _UINT64), ("datatype", 4, _UINT32),
    ("is_historical", 5, _BOOL), ("is_transient", 6, _BOOL), ("is_null", 7, _BOOL),
)  # fmt: skip
_NAME, _ALIAS, _TIMESTAMP, _DATATYPE, _IS_HISTORICAL, _IS_NULL = 1, 2, 3, 4, 5, 7
_FIRST_VALUE = 10
_VALUE_FIELDS = (
    ("int_value", 10, _UINT32), ("long_value", 11, _UINT64), ("float_value", 12, _FLOAT),
    ("double_value", 13, _DOUBLE), ("boolean_value", 14, _BOOL), ("string_value", 15, _STRING),
    ("bytes_value", 16, _BYTES),
)  # fmt: skip


class SparkplugTopic(NamedTuple):
    """Where a message came from or goes to; `device` is empty for the edge node itself."""

    group: str
    kind: str
    node: str
    device: str = ""

    @property
    def name(self) -> str:
        """The topic as text.

        >>> SparkplugTopic("plant", "DDATA", "press-7", "vib").name
        'spBv1.0/plant/DDATA/press-7/vib'
        """
        parts = (NAMESPACE, self.group, self.kind, self.node, self.device)
        return "/".join(parts[: 5 if self.device else 4])


def parse_topic(topic: str) -> SparkplugTopic | None:
    """The parts of a topic; None for the states of hosts, which are no data.

    Raises RejectedSampleError with reason `not_sparkplug` for any other topic.
    """
    levels = topic.split("/")
    if levels[0] == NAMESPACE and len(levels) > 1 and levels[1] == "STATE":
        return None
    if levels[0] != NAMESPACE or not 4 <= len(levels) <= 5 or not all(levels):
        raise RejectedSampleError("not_sparkplug", f"{topic[:80]!r} is no topic of Sparkplug B")
    return SparkplugTopic(*levels[1:])


MetricValue = bool | int | float | str | bytes | None
"""Value of a metric; None where it is null, of a type that edged does not read, or not sent."""


class Metric(NamedTuple):
    """One metric of a payload.

    `name` is empty where only the `alias` is sent; `ts` is Unix seconds, None where it is not sent.
    """

    name: str
    value: MetricValue = None
    alias: int | None = None
    ts: float | None = None
    datatype: int = 0
    historical: bool = False


class Payload(NamedTuple):
    """A payload: when it was sent (Unix seconds), its number and its metrics."""

    ts: float | None
    seq: int | None
    metrics: list[Metric]


class SparkplugWire:
    """Reads and writes Sparkplug payloads; UnavailableError when protobuf is not installed."""

    def __init__(self, where: str) -> None:
        required("google.protobuf", "sparkplug", where)
        self._message = _payload_class()
        from google.protobuf.message import DecodeError

        self._broken = (DecodeError, ValueError, RuntimeError)

    def read(self, data: bytes) -> Payload:
        """Decode a payload of Sparkplug B; RejectedSampleError with reason `not_sparkplug`."""
        try:
            message = self._message.FromString(data)
            return Payload(
                message.timestamp / 1000.0 if message.HasField("timestamp") else None,
                message.seq if message.HasField("seq") else None,
                [_metric(entry) for entry in message.metrics],
            )
        except self._broken as problem:
            what = str(problem).partition("\n")[0][:200]
            raise RejectedSampleError("not_sparkplug", f"no Sparkplug payload: {what}") from None

    def write(self, metrics: Iterable[Metric], *, ts: float, seq: int | None) -> bytes:
        """The bytes of a payload that is sent at `ts`; the metrics have their `datatype`."""
        message = self._message(timestamp=round(ts * 1000))
        if seq is not None:
            message.seq = seq
        for metric in metrics:
            _put(message.metrics.add(), metric)
        return bytes(message.SerializeToString())


def signed(value: int, datatype: int) -> int:
    """A number as it was before it was sent as an unsigned one.

    >>> signed(0xFFFFFFFE, INT32), signed(254, INT8), signed(254, 0)
    (-2, -2, 254)
    """
    bits = _SIGNED.get(datatype)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _metric(entry: Any) -> Metric:
    fields = {field.number: value for field, value in entry.ListFields()}
    datatype, ts, value = fields.get(_DATATYPE, 0), fields.get(_TIMESTAMP), None
    if not fields.get(_IS_NULL):
        # Of the values there is one, and it is the last of what is declared.
        number = next(reversed(fields), 0)
        value = fields[number] if number >= _FIRST_VALUE else None
    name = fields.get(_NAME, "")
    if type(name) is not str:  # the library gives bytes for text that is none
        raise ValueError("a metric's name is not Unicode text")
    return Metric(
        name,
        signed(value, datatype) if type(value) is int else value,
        fields.get(_ALIAS),
        None if ts is None else ts / 1000.0,
        datatype,
        fields.get(_IS_HISTORICAL, False),
    )


def _put(entry: Any, metric: Metric) -> None:
    if metric.name:
        entry.name = metric.name
    if metric.alias is not None:
        entry.alias = metric.alias
    if metric.ts is not None:
        entry.timestamp = round(metric.ts * 1000)
    entry.datatype = metric.datatype
    if metric.historical:
        entry.is_historical = True
    value: Any = metric.value
    if value is None:
        entry.is_null = True
    elif metric.datatype == BOOLEAN:
        entry.boolean_value = bool(value)
    elif metric.datatype == DOUBLE:
        entry.double_value = float(value)
    elif metric.datatype == STRING:
        entry.string_value = str(value)
    else:
        entry.long_value = int(value) & 0xFFFF_FFFF_FFFF_FFFF


def _payload_class() -> Any:
    """The class of payloads, made from the declarations above in a pool of its own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="edged/sparkplug.proto", package="edged", syntax="proto2")
    payload = file.message_type.add(name="Payload")
    metric = payload.nested_type.add(name="Metric")
    metric.oneof_decl.add(name="value")
    for fields, message, more in (
        (_PAYLOAD_FIELDS, payload, {}),
        (_METRIC_FIELDS, metric, {}),
        (_VALUE_FIELDS, metric, {"oneof_index": 0}),
    ):
        for name, number, kind in fields:
            message.field.add(name=name, number=number, type=kind, label=1, **more)
    payload.field.add(name="metrics", number=2, type=_MESSAGE, label=3, type_name=".edged.Payload.Metric")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("edged.Payload"))
