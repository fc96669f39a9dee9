"""The log: structured events on stderr, as JSON lines or readable on a terminal.

`configure` once per process, `get_logger(__name__)` in each module. Modules take their logger from
here and do not import structlog themselves: see `lazily.py`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from edged.lazily import hidden, lazily

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import FilteringBoundLogger, Processor

    from edged.journald import JournalLogger

lazily("asyncio")
with hidden("rich"):
    import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# structlog keeps the word `logger` for itself, so the name is bound as `logger_name`
_FIRST = {"ts": "ts", "level": "level", "logger_name": "logger", "event": "event"}


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send the log of this process to `stream`; may be called again, for instance after a reload.

    Libraries that log through the standard library (paho, apscheduler) and Python's own warnings
    come out in the same form, from WARNING on.

    Parameters
    ----------
    level
        Lowest level that is written: `debug`, `info`, `warning` or `error`.
    format
        `json`, `console`, or `auto`: console on a terminal, else JSON; where the stream is systemd's
        journal, JSON lines with a field for each of their values.
    stream
        stderr by default.

    Raises
    ------
    ValueError
        When `level` or `format` is none of these words; the configuration never holds another.
    """
    if level not in _LEVELS or format not in ("auto", "json", "console"):
        raise ValueError(f"no such log level or format: {level!r}, {format!r}")
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    journal = _journal(out) if format == "auto" else None
    structlog.configure(
        processors=_console(colors=terminal) if readable else _json(_for_journal if journal else _line),
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=journal or structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,  # or module-level loggers would keep the first configuration
    )
    _route_standard_logging()


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


def _journal(out: TextIO) -> JournalLogger | None:
    """What writes to systemd's journal, where `out` leads there."""
    if "JOURNAL_STREAM" not in os.environ:
        return None
    from edged import journald

    return journald.JournalLogger(out) if journald.is_journal(out) else None


def _console(*, colors: bool) -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="ts"),
        structlog.dev.ConsoleRenderer(
            colors=colors, timestamp_key="ts", exception_formatter=structlog.dev.plain_traceback
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
