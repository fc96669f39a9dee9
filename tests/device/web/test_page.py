"""The page of a real device as it is sent: who sees what, and that nothing from outside is part of it."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web.page.sections import SECTIONS
from tests.device.web.client import store
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.device.web.client import Client
    from tests.device.web.conftest import Site

pytestmark = pytest.mark.slow

VOID = {"meta", "link", "input", "br"}
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
FIRST_LOAD = 90_000  # bytes, compressed
STATIC = (
    "design.css", "page.css", "page.js", "suspects.js", "map.js", "icon.svg",
    "teach.js", "timeline.js",
)  # fmt: skip


class Checker(HTMLParser):
    """Tags that match, ids that are there once, and nothing that the policy of content forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.labelled: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids)), self.ids
        assert set(self.labelled) <= set(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            if name == "id":
                self.ids.append(value or "")
            elif name in ("aria-labelledby", "aria-describedby", "for"):
                self.labelled.append(value or "")
            elif name in ("src", "href"):
                assert str(value).startswith(("/", "api/")), value
        if tag == "script":
            assert dict(attrs).get("src"), "a script within the page"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        assert self.open[-1:] != ["style"]
        self.text += data


def sections(client: Client, only: str = "") -> dict[str, str]:
    answer = client("GET", f"/api/page?only={only}" if only else "/api/page")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, str] = answer.json
    return found


def command(client: Client, name: str, **fields: Any) -> Any:
    answer = client("POST", f"/api/commands/{name}", fields)
    assert answer.status in (200, 202), answer.body
    return answer.json


def test_who_may_not_look_sees_a_form_alone(site: Site) -> None:
    for client in (site.client, site.using("infer"), site.using("scrape")):
        answer = client("GET", "/")
        page = Checker(answer.body.decode())
        assert answer.status == 200
        assert {"code", "ask"} <= set(page.ids)
        assert not set(SECTIONS) & set(page.ids)
        assert "data-live" not in answer.body.decode()


def test_who_may_look_sees_everything_and_steers_nothing(site: Site) -> None:
    text = site.using("read")("GET", "/").body.decode()
    page = Checker(text)
    assert set(SECTIONS) <= set(page.ids)
    assert "Healthy" in page.text or "Needs attention" in page.text
    assert "version 1" in page.text
    assert "data-command" not in text
    assert "code" in page.ids


def test_who_may_steer_has_buttons_that_ask(site: Site) -> None:
    text = site.using("control")("GET", "/").body.decode()
    Checker(text)
    found = set(re.findall(r'data-command="([a-z.]+)"', text))
    assert {"train", "pause", "evaluate", "pin"} <= found
    assert text.count("data-command=") == text.count("data-ask=")


def test_the_first_load_is_small(site: Site) -> None:
    client = site.using("control")
    total = 0
    for path in ("/", *(f"/static/{name}" for name in STATIC)):
        answer = client("GET", path, accept_encoding="gzip")
        assert answer.status == 200
        if answer.headers.get("content-encoding") == "gzip":
            assert gzip.decompress(answer.body)
        total += len(answer.body)
    assert total < FIRST_LOAD / 2
    for name in STATIC:
        text = client("GET", f"/static/{name}").body.decode()
        assert set(re.findall(r'from "\./([a-z]+\.js)"', text)) <= set(STATIC)


def test_what_comes_from_outside_is_text(site: Site) -> None:
    store(site.unix, [[0.5, 1.0]], HOSTILE)
    client = site.using("control")
    wait_until(lambda: "onerror" in sections(client, "predictions")["predictions"])
    site.listener.publish("sensors/x", "{<script>")
    wait_until(lambda: "Quarantined" in sections(client, "events")["events"])
    text = client("GET", "/").body.decode()
    assert "img" not in Checker(text).tags
    assert HOSTILE in Checker(text).text
    report = client("GET", "/api/report").body.decode()
    assert "<img" not in report
    assert "<script" not in report


def test_sections_can_be_asked_for_one_by_one(site: Site) -> None:
    client = site.using("read")
    assert list(sections(client)) == list(SECTIONS)
    assert list(sections(client, "model,nothing,host")) == ["model", "host"]
    assert client("GET", "/api/page?only=" + "x" * 400).status == 400
    answer = client("GET", "/api/page", accept_encoding="gzip")
    assert set(SECTIONS) == set(json.loads(gzip.decompress(answer.body)))


def test_pausing_is_seen_at_once(site: Site) -> None:
    client = site.using("control")
    command(client, "pause", what="training")
    found = sections(client, "health,actions")
    assert "Paused by command: training" in found["health"]
    assert "Resume training" in found["actions"]
    command(client, "resume", what="training")
    found = sections(client, "health,actions")
    assert "Paused" not in found["health"]
    assert "Pause training" in found["actions"]


def test_an_evaluation_is_on_the_page_and_in_the_report(still: Site) -> None:
    client = still.unix
    report = client("GET", "/api/report")
    assert report.headers["content-disposition"] == 'attachment; filename="edged-still.html"'
    assert "<button" not in report.body.decode()
    ids = store(still.unix, [[i / 40, 1.0] for i in range(40)], "judged")
    command(client, "label", labels=[{"id": name, "label": "low"} for name in ids])
    command(client, "evaluate")
    wait_until(lambda: "accuracy" in sections(client, "actions")["actions"])
    found = client("GET", "/api/report").body.decode()
    assert "accuracy" in found
    assert "samples" in found
    wait_until(lambda: "<svg" in sections(client, "quality")["quality"])
    quality = sections(client, "quality")["quality"]
    assert "without learning" in quality
