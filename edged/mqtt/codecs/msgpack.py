"""MessagePack: one map with text keys a message. Its timestamps are read as Unix seconds."""

from __future__ import annotations

from typing import Any

from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import Parse, check_size
from edged.mqtt.optional_packages import required

_SECONDS = 1  # the library's number for timestamps as floats


def parser() -> Parse:
    """A function from a payload to what is in it.

    The library allocates no more than the payload could fill, and goes no deeper than its own stack.

    Raises UnavailableError when msgpack is not installed.
    """
    msgpack: Any = required("msgpack", "codecs", "stream.codec")
    unpack, too_deep = msgpack.unpackb, (msgpack.StackError, RecursionError)
    broken = (ValueError, OverflowError, msgpack.UnpackException)

    def parse(payload: bytes, largest: int) -> Any:
        check_size(payload, largest)
        try:
            return unpack(payload, timestamp=_SECONDS, strict_map_key=True)
        except too_deep:
            raise RejectedSampleError("too_deep", "nested too deeply") from None
        except broken as problem:
            what = str(problem) or type(problem).__name__
            raise RejectedSampleError("not_msgpack", f"not MessagePack: {what}"[:200]) from None

    return parse
