"""The log: structured events on stderr, as JSON lines or readable on a terminal.

`configure` once per process, `get_logger(__name__)` in each module. Modules take their logger from
here and do not import structlog themselves: see `lazy_imports.py`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from edged.errors import StorageError
from edged.lazy_imports import hidden, lazily

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor
    from typing_extensions import Self

lazily("asyncio")
with hidden("rich"):
    import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# structlog keeps the word `logger` for itself, so the name is bound as `logger_name`
_FIRST = {"ts": "ts", "level": "level", "logger_name": "logger", "event": "event"}


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream`; may be called again, for instance after a reload.

    Libraries that log through the standard library (paho, apscheduler) and Python's own warnings
    come out in the same form, from WARNING on.

    `level` is the lowest that is written: `debug`, `info`, `warning` or `error`. Lines are readable on a
    terminal, else JSON; where the stream is systemd's journal, with a field for each of their values.
    """
    _write(level, sys.stderr if stream is None else stream)
    _route_standard_logging()


def configure_library() -> None:
    """In another program, write warnings and errors to stderr, unless it has configured structlog itself.

    The standard library's logging stays as it is.
    """
    if not structlog.is_configured():
        _write("warning", sys.stderr)


def _write(level: str, out: TextIO) -> None:
    journal = JournalLogger(out) if is_journal(out) else None
    structlog.configure(
        processors=_console() if out.isatty() else _json(_for_journal if journal else _line),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=journal or structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # or module-level loggers would keep the first configuration
    )


def level() -> str:
    """Return the lowest level that is written at present."""
    present = structlog.get_config()["wrapper_class"]
    makers = {structlog.make_filtering_bound_logger(value): name for name, value in _LEVELS.items()}
    return makers.get(present, "debug")  # before `configure` everything is written


@contextmanager
def disk_may_refuse(log: FilteringBoundLogger, event: str, **fields: object) -> Iterator[None]:
    """Log a warning where the disk refuses what the block stores; the work continues without it."""
    try:
        yield
    except StorageError as problem:
        log.warning(event, **fields, problem=problem.line())


def get_logger(name: str) -> FilteringBoundLogger:
    """The logger of module `name`; its events carry the name as `logger`.

    >>> get_logger("edged.demo").bind(device="press-7")  # doctest: +ELLIPSIS
    <...>
    """
    return cast("FilteringBoundLogger", structlog.get_logger(logger_name=name))


def _json(last: Processor) -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
        _in_order,
        last,
    ]


def _console() -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="ts"),
        structlog.dev.ConsoleRenderer(
            colors=True, timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _in_order(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {word: event.pop(name) for name, word in _FIRST.items() if name in event} | dict(event)


def _line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    return json.dumps(_plain(event), ensure_ascii=False, allow_nan=False)


def _for_journal(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The line, and the values that it is made of, as the arguments of `JournalLogger.msg`."""
    plain = _plain(event)
    return (json.dumps(plain, ensure_ascii=False, allow_nan=False), plain), {}


def _plain(value: Any) -> Any:
    """`value` in JSON's own types; NaN and infinities as text, for JSON has no numbers for them."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    # numpy's scalars and arrays know their plain form, without numpy being imported here
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)


class _ToStructlog(logging.Handler):
    """Hands records of the standard library to structlog, so that there is one form and one stream."""

    def emit(self, record: logging.LogRecord) -> None:
        # structlog knows the five standard levels only; libraries are free to invent others
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        get_logger(record.name).log(level, record.getMessage(), exc_info=record.exc_info)


def _route_standard_logging() -> None:
    vars(logging)["logAsyncioTasks"] = (
        False  # or each record asks asyncio for a task's name, from Python 3.12 on
    )
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStructlog) for handler in root.handlers):
        root.addHandler(_ToStructlog(logging.WARNING))
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


SOCKET = "/run/systemd/journal/socket"
PATIENCE_S = 1.0
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_UNFIT = re.compile(r"[^A-Z0-9_]")
_LONGEST_NAME = 64  # journald drops fields with longer names


def is_journal(stream: TextIO) -> bool:
    """Whether what is written to `stream` goes to the journal; see `JOURNAL_STREAM` in systemd.exec(5)."""
    journal = os.environ.get("JOURNAL_STREAM")
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return journal == f"{there.st_dev}:{there.st_ino}"


def fields(event: Mapping[str, object], line: str) -> dict[str, str]:
    """The entry of the journal for an event: `EDGED_EVENT`, `EDGED_LOGGER` and one field for each of its own.

    >>> fields({"level": "warning", "event": "repaired", "rows": 3}, "{...}")["EDGED_ROWS"]
    '3'
    """
    level = str(event.get("level", "info"))
    entry = {"MESSAGE": line, "PRIORITY": str(_PRIORITIES.get(level, 6)), "SYSLOG_IDENTIFIER": "edged"}
    for name, value in event.items():
        if name not in ("ts", "level") and value is not None:
            field = f"EDGED_{_UNFIT.sub('_', name.upper())}"[:_LONGEST_NAME]
            entry[field] = value if isinstance(value, str) else json.dumps(value)
    return entry


def encode(entry: Mapping[str, str]) -> bytes:
    r"""One datagram: a text with line breaks is preceded by its length.

    >>> encode({"PRIORITY": "6", "MESSAGE": "a\nb"})
    b'PRIORITY=6\nMESSAGE\n\x03\x00\x00\x00\x00\x00\x00\x00a\nb\n'
    """
    parts = []
    for name, text in entry.items():
        data = text.encode(errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


class JournalLogger:
    """The last link of structlog's chain: hands one event to the journal.

    What the journal does not take, such as a line that is too long, goes to `stream` as text.
    """

    def __init__(self, stream: TextIO, address: str | None = None) -> None:
        self._stream = stream
        self._address = address or SOCKET

    def __call__(self, *_: object) -> Self:
        """Return this logger: it is its own factory."""
        return self

    def msg(self, line: str, event: Mapping[str, object]) -> None:
        """Write one event to the journal, or to the stream if that fails."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as journal:
                journal.settimeout(PATIENCE_S)
                journal.sendto(encode(fields(event, line)), self._address)
        except OSError:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg
