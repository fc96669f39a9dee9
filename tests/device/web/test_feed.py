"""Event streams: who begins late is told how things stand, who is too slow begins anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from edged.device.web.api.event_stream import BEHIND, KEPT, RECENT, EventStream
from edged.device.web.http.bodies import MAX_STREAMS, HttpError


def asking(query: str = "", last: str = "", method: str = "GET") -> Request:
    """A request for a stream."""
    headers = [(b"last-event-id", last.encode())] if last else []
    asgi = {"spec_version": "2.3"}
    return Request(
        {"type": "http", "asgi": asgi, "method": method, "headers": headers, "query_string": query.encode()}
    )


async def gone() -> Any:
    """A client that has left."""
    return {"type": "http.disconnect"}


async def quiet() -> Any:
    """A client that stays, and says no more."""
    await asyncio.Event().wait()


async def stuck(_: Any) -> None:
    """A connection that takes nothing."""
    await asyncio.Event().wait()


async def opened(feed: EventStream, query: str = "", last: str = "") -> AsyncIterator[bytes]:
    """The lines of a new stream, after its prelude."""
    response: Any = await feed.stream(asking(query, last))
    lines = response.body_iterator
    assert (await anext(lines)).startswith(b"retry")
    return lines  # type: ignore[no-any-return]


async def read(lines: AsyncIterator[bytes]) -> list[tuple[int, str, Any]]:
    """Number, name and values of the next messages."""
    block = await asyncio.wait_for(anext(lines), 5)
    found = []
    for message in block.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in message.splitlines())
        found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_stream_begins_with_the_newest_of_each_state() -> None:
    async def run() -> None:
        feed = EventStream()
        feed.publish("state/model", {"version": 1})
        feed.publish("state/model", {"version": 2})
        feed.publish("events", {"event": "started"})
        await asyncio.sleep(0)
        lines = await opened(feed)
        assert [(name, values) for _, name, values in await read(lines)] == [("state/model", {"version": 2})]
        feed.publish("events", {"event": "x", "value": float("nan")})
        assert (await read(lines))[0][1:] == ("events", {"event": "x", "value": None})
        feed.stop()
        assert [line async for line in lines] == []
        assert feed.streams == 0
        with pytest.raises(HttpError):
            await opened(feed)

    asyncio.run(run())


def test_missed_events_come_again_as_far_as_they_are_here() -> None:
    async def run() -> None:
        feed = EventStream()
        for number in range(KEPT + 50):
            feed.publish("events", {"n": number})
        await asyncio.sleep(0)
        everything = await read(await opened(feed, "since=0"))
        assert [values["n"] for _, _, values in everything] == list(range(50, KEPT + 50))
        last = str(everything[-3][0])
        assert [values["n"] for _, _, values in await read(await opened(feed, last=last))] == [
            KEPT + 48,
            KEPT + 49,
        ]

    asyncio.run(run())


def test_who_comes_back_after_a_restart_gets_what_happened_since() -> None:
    async def run() -> None:
        feed = EventStream()
        feed.publish("events", {"event": "started"})
        await asyncio.sleep(0)
        assert [values for _, _, values in await read(await opened(feed, last="950"))] == [
            {"event": "started"}
        ]

    asyncio.run(run())


def test_a_stream_has_the_topics_it_asks_for() -> None:
    async def run() -> None:
        feed = EventStream()
        lines = await opened(feed, "topics=state,response/train")
        feed.publish("events", {})
        feed.publish("state/model", {})
        feed.publish("response/label", {})
        feed.publish("response/train", {})
        assert [name for _, name, _ in await read(lines)] == ["state/model", "response/train"]

    asyncio.run(run())


def test_who_does_not_read_is_ended_and_takes_no_more_memory() -> None:
    async def run() -> None:
        feed = EventStream()
        lines = await opened(feed)
        for number in range(BEHIND + 10):
            feed.publish("events", {"n": number})
        await asyncio.sleep(0)
        assert [line async for line in lines] == []
        assert feed.streams == 0

    asyncio.run(run())


def test_predictions_come_together_the_newest_of_many() -> None:
    async def run() -> None:
        feed = EventStream()
        feed.predicted([b'{"key": "before"}'])
        lines = await opened(feed)
        feed.predicted([b'{"key": "%d"}' % number for number in range(500)])
        [(_, name, values)] = await read(lines)
        assert name == "predictions"
        assert [one["key"] for one in values] == [str(number) for number in range(500 - RECENT, 500)]
        feed.stop()

    asyncio.run(run())


def test_streams_that_have_not_begun_count() -> None:
    async def run() -> None:
        feed = EventStream()
        answers = [await feed.stream(asking()) for _ in range(MAX_STREAMS)]
        with pytest.raises(HttpError):
            await feed.stream(asking())
        for answer in answers:  # their clients leave before the first line
            await asyncio.wait_for(answer(asking().scope, gone, stuck), 5)
        assert feed.streams == 0
        await opened(feed)

    asyncio.run(run())


def test_only_a_head_is_answered_to_head() -> None:
    async def run() -> None:
        feed = EventStream()
        answer = await feed.stream(asking(method="HEAD"))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(answer(asking(method="HEAD").scope, quiet, send), 5)
        names = {name for name, _ in sent[0]["headers"]}
        assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
        assert b"content-length" not in names
        assert feed.streams == 0

    asyncio.run(run())


def test_streams_are_bounded() -> None:
    async def run() -> None:
        feed = EventStream()
        streams = [await opened(feed) for _ in range(MAX_STREAMS)]
        with pytest.raises(HttpError) as caught:
            await opened(feed)
        assert caught.value.status == 503
        feed.stop()
        for lines in streams:
            assert [line async for line in lines] == []

    asyncio.run(run())
