"""The page's files: what is in them, and what serves them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edged.cli.main import main
from edged.device.settings import PUBLISHED
from edged.domain.messages.requests import READS, REQUESTS
from edged.errors import ConfigError
from edged.fleet.page.server import FOLDER, PageSettings, page_files, write_files
from tests.fleet.page.ui import Ui, fleet_ui

LARGEST = 180 * 1024  # bytes that the first visit costs, compressed
OURS = sorted(path for path in FOLDER.glob("*.js") if path.name != "mqtt.min.js")


@pytest.fixture(scope="module")
def ui() -> Iterator[Ui]:
    with fleet_ui("--broker-ws", "ws://127.0.0.1:9001", "--root", "plant") as running:
        yield running


class Links(HTMLParser):
    """What a page loads, and what a policy without `unsafe-inline` would forbid."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.files: set[str] = set()
        self.inline: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.files |= {v for k, v in attrs if v and (k == "src" or (k == "href" and tag == "link"))}
        self.inline += [k for k in told if k == "style" or k.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in told) else []


def test_the_first_visit_is_small_and_complete(ui: Ui) -> None:
    first = ui.ask("/")
    page = Links(first.body.decode())
    assert page.inline == []
    assert len(page.files) > 5
    answers = [first, *(ui.ask(f"/{name}") for name in page.files)]
    assert {answer.status for answer in answers} == {200}
    assert sum(len(gzip.compress(answer.body)) for answer in answers) <= LARGEST


def test_vendored_files_are_what_was_published() -> None:
    lines = FOLDER.with_name("vendored.sha256").read_text().splitlines()
    listed = [line.split() for line in lines if not line.startswith("#")]
    for digest, name in listed:
        assert hashlib.sha256((FOLDER.parent / name).read_bytes()).hexdigest() == digest
    assert [name for _, name in listed] == ["static/mqtt.min.js"]
    assert "MIT License" in (FOLDER / "mqtt.LICENSE.txt").read_text()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_of_the_broker_becomes_html_or_code(path: Path) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|localStorage"
    )
    assert re.findall(forbidden, path.read_text()) == []


def test_the_page_offers_commands_that_devices_have() -> None:
    table = (FOLDER / "asking.js").read_text().partition("const COMMANDS = {")[2].partition("\n};")[0]
    offered = {match[1] for match in re.finditer(r'^  "?([a-z.]+)"?: \{', table, re.MULTILINE)}
    assert {"status", "train", "pause", "resume", "rollback"} <= offered <= set(REQUESTS)
    assert "commands" in PUBLISHED  # the page reads there what must be signed
    reads = re.search(r"^const READS = (\[.*?\]);", (FOLDER / "devices.js").read_text(), re.MULTILINE)
    assert reads is not None
    assert set(json.loads(reads[1])) == READS


def test_headers_on_every_answer(ui: Ui) -> None:
    for answer in (
        ui.ask("/"), ui.ask("/fleet.css", "HEAD"), ui.ask("/nowhere"), ui.ask("/", "POST"),
        ui.ask("/", "DELETE"),
    ):  # fmt: skip
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "connect-src ws://127.0.0.1:9001;" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["server"] == "edged"
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_files_and_nothing_else(ui: Ui) -> None:
    script = ui.ask("/devices.js")
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert script.body == (FOLDER / "devices.js").read_bytes()
    assert ui.ask("/devices.js", "HEAD").headers["content-length"] == str(len(script.body))
    for path in ("/../files.py", "/static/devices.js", "//../files.py", "/%64evices.js", "/vendored.sha256"):
        assert ui.ask(path).status == 404
    assert ui.ask("/", "POST").status == 501
    assert b'content="plant"' in ui.ask("/").body


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--broker-ws ws://host:9001"),
        (("--broker-ws", "wss://x", "--listen", "0.0.0.0:8090"), "127.0.0.1"),
        (("--broker-ws", "wss://x", "--listen", "example.org:80"), "127.0.0.1"),
        (("--broker-ws", "wss://x", "--listen", "8090"), "no address"),
        (("--broker-ws", "http://x"), "ws://host:port"),
        (("--broker-ws", "ws://me:secret@x"), "asked in the page"),
        (("--broker-ws", "ws://x; script-src *"), "ws://host:port"),
        (("--root", "a/#"), "topics"),
    ],
)
def test_what_it_does_not_start_with(
    options: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["edged", "fleet", "ui", *options])
    assert main() == 2
    told = capsys.readouterr().err
    assert re.search(words, told)
    assert "secret" not in told
    assert told.count("\n") == 1


def test_a_port_that_is_taken(
    ui: Ui, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["edged", "fleet", "ui", "--broker-ws", "wss://x", "--listen", f"127.0.0.1:{ui.port}"]
    )
    assert main() == 4
    assert "--listen names another" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to(number: signal.Signals) -> None:
    with fleet_ui("--broker-ws", "wss://broker.example:8443/mqtt") as running:
        assert "connect-src wss://broker.example:8443;" in running.ask("/").headers["content-security-policy"]
        running.process.send_signal(number)
        assert running.process.wait(5) == 0


def test_files_for_another_server(tmp_path: Path) -> None:
    names = write_files(PageSettings("wss://b.example/x", "plant"), tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    assert set(names) == set(page_files(PageSettings()))
    assert 'content="wss://b.example/x"' in page
    assert "connect-src wss://b.example;" in page
    assert "frame-ancestors" not in page  # browsers take that from a header only


def test_settings_cannot_leave_their_attribute() -> None:
    with pytest.raises(ConfigError):
        PageSettings('ws://x"><script>')
    page = page_files(PageSettings(root='"><script src=x>'))["index.html"].decode()
    assert "&quot;&gt;&lt;script src=x&gt;" in page
