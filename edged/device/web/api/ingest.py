"""Samples and labels over HTTP, as JSON, JSON lines or InfluxDB line protocol.

Their records pass the rules that messages of the broker pass; of a request all are stored or none. The answer
comes when they are on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edged.config import StreamConfig
from edged.device.web.bridge import ServingBridge
from edged.device.web.http.bodies import MAX_BODY, MAX_ROWS, HttpError, as_json, read_body
from edged.domain.line_protocol import parse_line
from edged.domain.stream.sample import Observation, Reading
from edged.errors import RefusedError, RejectedSampleError
from edged.mqtt.codecs import label_codec, sample_codec
from edged.mqtt.codecs.objects import POSITIONAL, records_of, the_object
from edged.mqtt.codecs.parsers import in_nanoseconds, parse_any
from edged.mqtt.field_access import MISSING, field
from edged.mqtt.topics import is_one_of, only_topic

Decode = Callable[[str, bytes], Any]
Records = list[tuple[str, Any]]  # where each is in the body, and what it is, or why it is no object


JSON_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
TEXT = ("", "text/plain", "application/json", "application/x-www-form-urlencoded")
NO_TOPIC = "http"  # of labels, which mostly name their samples
MOST_SHOWN = 100  # rejected records in an answer


class IngestEndpoints:
    """Endpoints `/v1/samples` and `/v1/labels` of a device's stream."""

    def __init__(self, stream: StreamConfig, bridge: ServingBridge) -> None:
        self._stream, self._bridge = stream, bridge
        plain = {"codec": "json", "records": None, "max_payload": MAX_BODY}
        as_text = stream.model_copy(update=plain)
        self._samples = sample_codec(as_text).decode
        self._labels = label_codec(as_text).decode
        paths = [feature.field_path or feature.name for feature in stream.measured]
        self._features = [field(path) for path in paths or [POSITIONAL]]

    async def samples(self, request: Request) -> Response:
        """Store samples: 200 with their number, 400 with a line for each rejected record."""
        return await self._store(request, only_topic(self._stream.topics), self._samples)

    async def labels(self, request: Request) -> Response:
        """Store labels: 200 with their number and how many have no sample, 400 as for samples."""
        if self._stream.resolved_task in ("reconstruct", "forecast"):
            raise HttpError(400, f"task {self._stream.resolved_task} makes its own labels", kind="request")
        pattern = self._stream.label_filter
        own = only_topic(self._stream.topics if pattern is None else [pattern])
        return await self._store(request, own or NO_TOPIC, self._labels)

    async def _store(self, request: Request, own: str | None, decode: Decode) -> Response:
        body = await read_body(request.scope, request.receive)
        topic = request.query_params.get("topic", own)
        if topic is None or (topic != own and not is_one_of(topic, self._stream.all_topics)):
            reason = "which topic?" if topic is None else f"{topic[:60]!r} is no topic of the stream"
            named = ", ".join(self._stream.all_topics)
            raise HttpError(400, reason, kind="request", remedy=f"add ?topic=, one of {named}")
        media = request.scope["edged.headers"].get(b"content-type", b"")
        records = self._records(body, media, self._label_line if decode is self._labels else _line)
        accepted: list[Any] = []
        rejected: list[str] = []
        foreign: list[str] = []
        for where, record in records:
            try:
                found = _strictly(record, topic, decode)
            except RejectedSampleError as problem:
                line = f"{where}: {problem.reason}: {problem.what}"
                passed_over = decode is self._samples and self._is_foreign(record, problem)
                (foreign if passed_over else rejected).append(line)
            else:
                accepted += found if isinstance(found, list) else [found]
        if rejected or not accepted:
            return _rejection(rejected or foreign, len(records))
        try:
            unmatched = await self._bridge.store(accepted)
        except RefusedError as problem:
            status, kind = (429, "rate") if problem.where == "stream.key_rate" else (503, "stopping")
            raise HttpError(status, problem.line(), kind=kind, headers={"retry-after": "1"}) from None
        labels = {"unmatched": unmatched} if decode is self._labels else {"passed_over": len(foreign)}
        return as_json({"accepted": len(records) - len(foreign), **labels})

    def _records(self, body: bytes, media: bytes, of_line: Callable[[str], Any]) -> Records:
        """The records in a body, `of_line` those of plain text; HttpError for another format, or too many."""
        kind = media.partition(b";")[0].strip().lower().decode("latin-1")
        if kind not in (*TEXT, *JSON_LINES):
            known = "application/json, application/x-ndjson, text/plain"
            raise HttpError(415, f"content-type {kind[:40]!r} is not known", kind="media", remedy=known)
        try:
            if kind in JSON_LINES:
                records = _lines(body, lambda line: the_object(parse_any(line.encode(), len(body))))
            elif body.lstrip()[:1] in (b"{", b"["):
                found = records_of(parse_any(body, len(body)), self._stream.records, MAX_ROWS)
                records = [(f"record {number}", record) for number, record in enumerate(found, 1)]
            else:
                records = _lines(body, of_line)
        except RejectedSampleError as problem:
            raise HttpError(400, f"{problem.reason}: {problem.what}", kind="request") from None
        if not 0 < len(records) <= MAX_ROWS:
            raise HttpError(400, f"{len(records)} records, 1 to {MAX_ROWS} are taken", kind="request")
        return records

    def _label_line(self, line: str) -> Any:
        """A bare label, which has no field, or the record in a line of InfluxDB line protocol."""
        if "=" in line:
            return _line(line)
        if self._stream.near_label is None:
            expected = 'an object such as {"id": "4-1207", "label": "worn"}'
            raise RejectedSampleError("wrong_type", f"received {line.strip()[:40]!r}, expected {expected}")
        return line.strip()

    def _is_foreign(self, record: Any, problem: RejectedSampleError) -> bool:
        """Whether a record was rejected for bringing no feature: in a batch it is of another sensor."""
        missing = problem.reason == "missing_field" and type(record) is dict
        return missing and all(getter(record) is MISSING for getter in self._features)


def _strictly(record: Any, topic: str, decode: Decode) -> Any:
    """What a record says; RejectedSampleError also for a label that its stream does not know."""
    if isinstance(record, RejectedSampleError):
        raise record
    found = decode(topic, json.dumps(record).encode())
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Reading | Observation) and one.refused_label is not None:
            raise RejectedSampleError("label", one.refused_label)
    return found


def _line(line: str) -> Any:
    """The record in a line of InfluxDB line protocol."""
    return in_nanoseconds(parse_line(line))


def _lines(body: bytes, parse: Callable[[str], Any]) -> Records:
    """The records of a body with one a line; RejectedSampleError when it is no text."""
    try:
        text = body.decode()
    except UnicodeDecodeError as problem:
        raise RejectedSampleError("not_text", str(problem)) from None
    records: Records = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = parse(line)
        except RejectedSampleError as problem:
            record = problem
        if record is not None:
            records.append((f"line {number}", record))
    return records


def _rejection(lines: list[str], of: int) -> Response:
    shown = lines[:MOST_SHOWN]
    problem = f"{len(lines)} of {of} records rejected, none stored: {shown[0]}"
    return as_json({"error": problem, "rejected": shown}, 400)
