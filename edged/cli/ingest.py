"""`edged ingest`: publish the lines of a file or of stdin as messages of the stream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from edged.cli.options import AsJson, ConfigPath, Stream, print_json
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config import StreamConfig

TEXT = ("json", "influx", "csv", "senml")  # codecs whose messages can be lines
PATIENCE = 60.0  # seconds without an acknowledgement; with --follow there is no limit


def ingest(
    config: ConfigPath,
    file: Annotated[Path, Argument(metavar="FILE|-", help="messages, one per line; - for stdin")],
    topic: Annotated[str | None, Option(help="topic to publish on; stream.topic when absent")] = None,
    follow: Annotated[bool, Option("--follow", help="also publish lines that are appended later")] = False,
    stream: Stream = None,
    as_json: AsJson = False,
) -> None:
    """Publish the lines of a file as messages of the stream, and wait until the broker has them.

    The daemon receives them at once, or at its next start if it has connected before.
    """
    from edged import logs
    from edged.config import loader
    from edged.mqtt.line_publisher import LinePublisher, followed_lines, lines_of

    loaded = loader.load(config, stream=stream)
    logs.configure("warning")
    where = _topic(loaded.stream, topic)
    longest = loaded.stream.max_payload
    stdin = str(file) == "-"
    with sys.stdin.buffer if stdin else file.open("rb") as source:
        lines = followed_lines(file, longest) if follow and not stdin else lines_of(source, longest)
        publisher = LinePublisher(loaded.mqtt, where, patience=None if follow else PATIENCE)
        publisher.connect()
        try:
            for line in lines:
                publisher.publish(line)
            publisher.flush()
        finally:
            publisher.close()
            result = {"published": publisher.acknowledged, "topic": where}
            shown = f"{where}: {publisher.acknowledged} messages published\n"
            print_json(result) if as_json else sys.stdout.write(shown)


def _topic(stream: StreamConfig, given: str | None) -> str:
    """The topic to publish on; ConfigError when there is none, or lines cannot be messages of the stream."""
    from edged.mqtt.topics import is_one_of, only_topic

    if stream.codec not in TEXT:
        raise ConfigError(
            f"messages in {stream.codec} are no lines of text",
            where="stream.codec",
            remedy=f"publish them with another program, or use one of {', '.join(TEXT)}",
        )
    if given is None:
        topic = only_topic(stream.topics)
        if topic is None:
            raise ConfigError(
                "this is more than one topic", where="stream.topic", remedy="name one of them with --topic"
            )
        return topic
    if not is_one_of(given, stream.all_topics):
        problem = f"{given!r} is no topic of the stream"
        raise ConfigError(problem, where="--topic", remedy=f"one of {', '.join(stream.all_topics)}")
    return given
