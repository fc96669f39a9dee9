"""Which settings of a stream go with which format of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.config.stream import StreamConfig

ARRAYS = ("float32", "float16", "int16")
TIMED = ("senml", "sparkplug")  # formats whose fields have names and times of their own
POSITIONAL = "x"


def check_codec(stream: StreamConfig) -> None:
    """Refuse settings that the stream's format has no use for.

    Raises
    ------
    ValueError
        Naming the setting and what to do.
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
    if codec == "csv":
        _check_columns(stream)
    elif stream.columns is not None or stream.delimiter != ",":
        raise ValueError(f"columns and delimiter are for codec csv: remove them with codec {codec}")


def _check_array(stream: StreamConfig) -> None:
    fields = {"label": stream.label, "ts": stream.ts, "id": stream.id, "key": stream.key}
    for name, value in fields.items():
        if value is not None and not (name == "key" and value.startswith("topic:")):
            hint = "use topic:N" if name == "key" else "remove it"
            raise ValueError(f"codec {stream.codec} has numbers only, no field for {name}: {hint}")
    if stream.compression == "auto":
        raise ValueError(
            f"compression auto cannot be told from raw {stream.codec} numbers: name one, or none"
        )


def _check_columns(stream: StreamConfig) -> None:
    columns = stream.columns or list(stream.names) or [POSITIONAL]
    wanted = {**dict.fromkeys(stream.names or (POSITIONAL,), "features")}
    for name in ("label", "ts", "id", "key"):
        value = getattr(stream, name)
        if value is not None and not (name == "key" and value.startswith("topic:")):
            wanted[value] = name
    for column, what in wanted.items():
        if column not in columns:
            raise ValueError(f"{what}: {column!r} is no column of codec csv: name it in columns")
