"""What the format of the messages, and samples of several of them, allow in section `stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.config.stream import StreamConfig

OBJECTS = ("json", "cbor", "msgpack", "influx")  # formats of messages with named fields
ARRAYS = ("float32", "float16", "int16")
TIMED = ("senml", "sparkplug")  # formats whose fields have names and times of their own
POSITIONAL = "x"


def check_codec(stream: StreamConfig) -> None:
    """Refuse settings that the stream's format has no use for.

    Raises ValueError naming the setting and what to do.
    """
    codec = stream.codec
    if codec in ARRAYS:
        _check_array(stream)
    elif stream.byte_order != "little":
        raise ValueError(f"byte_order is for raw arrays: remove it with codec {codec}")
    if codec in TIMED:
        if not stream.names:
            raise ValueError(f"codec {codec} has named fields: list the names as features")
        if stream.ts is not None:
            raise ValueError(f"codec {codec} carries the time itself: remove ts")
    if codec == "sparkplug" and not all("spBv1.0/" in topic for topic in stream.topics):
        raise ValueError("codec sparkplug: topic must be of spBv1.0, such as spBv1.0/plant/+/line-1/#")
    if stream.records is not None and (codec not in OBJECTS or codec == "influx"):
        raise ValueError(f"records is for codecs json, cbor and msgpack: remove it with codec {codec}")
    if codec == "csv":
        _check_columns(stream)
    elif stream.columns is not None or stream.delimiter != ",":
        raise ValueError(f"columns and delimiter are for codec csv: remove them with codec {codec}")


def check_joined(stream: StreamConfig) -> None:
    """Refuse what makes no sense where samples are made of several messages.

    Raises ValueError naming the setting and what to do.
    """
    if stream.codec not in OBJECTS:
        raise ValueError(f"codec {stream.codec} cannot be joined: use one of {', '.join(OBJECTS)}")
    if isinstance(stream.features, int) or not stream.measured:
        raise ValueError("name the features, including at least one from messages: features: [temperature]")
    rules = stream.join_rules()  # raises where sample is neither a feature nor a duration
    if rules.period == 0:
        raise ValueError("sample: expected a duration above 0")
    if len(set(stream.names)) < len(stream.names):
        raise ValueError("features: two columns of the sample have the same name")


def check_keys(stream: StreamConfig) -> None:
    """Refuse keys that are not in the messages, and features of several topics without a common one.

    Raises ValueError naming the feature and what to do.
    """
    own = [(f.name, f.topic, f.field_path, f.key) for f in stream.measured]
    if (label := stream.near_label) is not None:
        own.append(("label", label.topic, label.path, label.key))
    for name, topic, path, key in own:
        spec = key or stream.key_spec
        if path is None and spec is not None and not spec.startswith("topic:"):
            raise ValueError(f"{name}: a bare value has no field {spec!r} for its key: give it key: topic:N")
        if topic is not None and key is None and stream.key is None and len(stream.all_topics) > 1:
            raise ValueError(
                f"{name} has its own topic: a common key is needed, key: {{fixed: name}} or topic:N"
            )


def _check_array(stream: StreamConfig) -> None:
    for name, value in _fields(stream).items():
        if value is not None and not (name == "key" and value.startswith("topic:")):
            hint = "use topic:N" if name == "key" else "remove it"
            raise ValueError(f"codec {stream.codec} carries only numbers, no field for {name}: {hint}")


def _check_columns(stream: StreamConfig) -> None:
    columns = stream.columns or list(stream.names) or [POSITIONAL]
    wanted = dict.fromkeys(stream.names or (POSITIONAL,), "features") | {
        value: name
        for name, value in _fields(stream).items()
        if value is not None and not (name == "key" and value.startswith("topic:"))
    }
    for column, what in wanted.items():
        if column not in columns:
            raise ValueError(f"{what}: {column!r} is not a column of codec csv: name it in columns")


def _fields(stream: StreamConfig) -> dict[str, str | None]:
    return {"label": stream.label_path, "ts": stream.ts, "id": stream.id, "key": stream.key_spec}
