"""The log as data: what a line says, where it goes, and what logging does not cost."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from edged.logs import configure, get_logger


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail(problem: Exception) -> None:
    raise problem


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]


def test_a_json_line_holds_time_level_logger_and_event(out: io.StringIO) -> None:
    configure("info", out)
    get_logger("edged.ingest").info("batch stored", rows=12)
    (line,) = lines(out)
    written = datetime.fromisoformat(line.pop("ts").replace("Z", "+00:00"))
    assert timedelta() <= datetime.now(timezone.utc) - written < timedelta(minutes=1)
    assert line == {"level": "info", "logger": "edged.ingest", "event": "batch stored", "rows": 12}


def test_the_words_of_a_line_come_in_one_order(out: io.StringIO) -> None:
    configure("info", out)
    get_logger("a").warning("b", zone=1, area=2)
    assert list(lines(out)[0]) == ["ts", "level", "logger", "event", "zone", "area"]


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_decides_what_is_written(out: io.StringIO, level: str, count: int) -> None:
    configure(level, out)
    logger = get_logger("a")
    for write in (logger.debug, logger.info, logger.warning, logger.error):
        write("event")
    assert len(lines(out)) == count


def test_a_later_configuration_reaches_loggers_that_exist(out: io.StringIO) -> None:
    logger = get_logger("a")
    configure("error", io.StringIO())
    logger.info("lost")
    configure("info", out)
    logger.info("kept")
    assert [line["event"] for line in lines(out)] == ["kept"]


def test_every_value_becomes_valid_json(out: io.StringIO) -> None:
    configure("info", out)
    get_logger("a").info(
        "values",
        loss=float("nan"),
        bound=[float("inf"), 1.5],
        single=np.float32(0.5),
        worst=np.float64("nan"),
        row=np.array([1.0, np.nan], dtype=np.float32),
        path=Path("state/x"),
        where={"topic": None, 3: True},
    )
    line = lines(out)[0]
    assert [line[key] for key in ("loss", "bound", "single", "worst", "row", "path", "where")] == [
        "nan", ["inf", 1.5], 0.5, "nan", [1.0, "nan"], "state/x", {"topic": None, "3": True},
    ]  # fmt: skip


def test_a_line_break_in_a_value_stays_on_the_line(out: io.StringIO) -> None:
    configure("info", out)
    get_logger("a").info("bad payload", start='{"x":\n1}')
    assert out.getvalue().count("\n") == 1


def test_an_exception_carries_its_traceback(out: io.StringIO) -> None:
    configure("info", out)
    try:
        fail(OSError(5, "disk gone"))
    except OSError:
        get_logger("a").exception("commit failed")
    line = lines(out)[0]
    assert line["level"] == "error"
    assert line["exception"].endswith("OSError: [Errno 5] disk gone")


def test_auto_is_json_without_a_terminal(out: io.StringIO) -> None:
    configure("info", out)
    get_logger("a").info("event")
    assert lines(out)[0]["event"] == "event"


def test_auto_is_readable_on_a_terminal() -> None:
    terminal = Terminal()
    configure("info", terminal)
    get_logger("edged.serve").info("model swapped", version=3)
    text = terminal.getvalue()
    assert "model swapped" in text
    assert "\x1b[" in text
    assert not text.startswith("{")


def test_a_terminal_shows_fields_and_tracebacks() -> None:
    terminal = Terminal()
    configure("info", terminal)
    try:
        fail(KeyError("topic"))
    except KeyError:
        get_logger("edged.serve").exception("event", version=3)
    text = terminal.getvalue()
    assert "edged.serve" in text
    assert "version" in text
    assert "KeyError: 'topic'" in text


def test_libraries_are_heard_from_warning_on(out: io.StringIO) -> None:
    configure("debug", out)
    configure("debug", out)  # twice: their events must still come once
    logger = logging.getLogger("apscheduler.scheduler")
    logger.info("added job")
    logger.warning("run time of job %r was missed by %s", "train", 5)
    (line,) = lines(out)
    assert line["level"] == "warning"
    assert line["logger"] == "apscheduler.scheduler"
    assert line["event"] == "run time of job 'train' was missed by 5"


def test_a_library_with_a_level_of_its_own(out: io.StringIO) -> None:
    configure("info", out)
    logging.getLogger("odd").log(35, "between warning and error")
    logging.getLogger("odd").log(90, "beyond critical")
    assert [line["level"] for line in lines(out)] == ["warning", "critical"]


def test_an_exception_of_a_library(out: io.StringIO) -> None:
    configure("info", out)
    try:
        fail(ConnectionError("refused"))
    except ConnectionError:
        logging.getLogger("paho").exception("cannot connect")
    assert lines(out)[0]["exception"].endswith("ConnectionError: refused")


def test_warnings_of_python_come_in_the_same_form(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure("info", out)
        warnings.warn("old option", stacklevel=1)
        logging.captureWarnings(capture=False)
    assert lines(out)[0]["logger"] == "py.warnings"
    assert "old option" in lines(out)[0]["event"]


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


def test_logging_does_not_import_rich() -> None:
    code = (
        "import sys\nfrom edged.logs import configure, get_logger\n"
        "sys.stdout.isatty = lambda: True\nconfigure('info', sys.stdout)\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    get_logger('a').exception('event')\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'rich'])\n"
    )
    assert in_a_new_process(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize("order", ["import edged.logs, rich.console", "import rich.console, edged.logs"])
def test_a_process_that_needs_rich_gets_it(order: str) -> None:
    assert in_a_new_process(f"{order}\nprint(rich.console.Console(width=20).width)") == "20\n"
