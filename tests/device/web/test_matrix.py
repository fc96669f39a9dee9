"""Every path against every attack, on a real daemon: what is refused, and with which status."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web import service
from edged.device.web.http.authentication import FAILURES
from edged.device.web.http.bodies import MAX_BODY
from tests.device.web.client import INFER, MODEL, TOKENS, Answer, Client, rows

if TYPE_CHECKING:
    from tests.device.web.conftest import Site

pytestmark = pytest.mark.slow

COMMAND = "/api/commands/pause"
NO_SAMPLE = "/api/labels/samples/none"
ROUTES: dict[str, tuple[str, tuple[str, ...]]] = {
    # path: method, and scopes whose tokens open it; none for everybody
    "/": ("GET", ()),
    "/static/page.js": ("GET", ()),
    "/v2/health/live": ("GET", ()),
    "/v2/health/ready": ("GET", ()),
    "/v2": ("GET", ("infer", "read", "control")),
    "/v2/": ("GET", ("infer", "read", "control")),
    f"/v2/models/{MODEL}": ("GET", ("infer", "read", "control")),
    f"/v2/models/{MODEL}/versions/1": ("GET", ("infer", "read", "control")),
    f"/v2/models/{MODEL}/ready": ("GET", ("infer", "read", "control")),
    f"/v2/models/{MODEL}/versions/1/ready": ("GET", ("infer", "read", "control")),
    INFER: ("POST", ("infer",)),
    f"/v2/models/{MODEL}/versions/1/infer": ("POST", ("infer",)),
    "/v1/samples": ("POST", ("ingest", "infer")),
    "/v1/labels": ("POST", ("ingest", "infer")),
    "/metrics": ("GET", ("scrape",)),
    "/api/status": ("GET", ("read", "control")),
    "/api/page": ("GET", ("read", "control")),
    "/api/report": ("GET", ("read", "control")),
    "/api/labels/suspects": ("GET", ("read", "control")),
    "/api/labels/map": ("GET", ("read", "control")),
    NO_SAMPLE: ("GET", ("read", "control")),
    "/api/timeline": ("GET", ("read", "control")),
    "/api/timeline/count": ("GET", ("read", "control")),
    "/api/login": ("POST", ()),
    "/api/logout": ("POST", ()),
    "/api/events": ("GET", ("read", "control")),
    COMMAND: ("POST", ("control",)),
}
BODIES: dict[str, Any] = {
    "/api/login": {},  # no code: 400
    "/api/logout": {},
    "/v1/samples": [],  # neither a sample nor a label: 400
    "/v1/labels": [],
    COMMAND: {"what": "nothing"},  # reaches the command, which refuses it: 400
}
OPEN = {
    COMMAND: 400, NO_SAMPLE: 400, "/api/login": 400, "/v1/samples": 400, "/v1/labels": 400, "/api/logout": 204
}  # fmt: skip
FOREIGN = {
    "another host": (421, {"host": "evil.example"}),
    "another host with our port": (421, {"host": "evil.example:80"}),
    "a host that begins like ours": (421, {"host": "localhost.evil.example"}),
    "our host as a user": (421, {"host": "localhost@evil.example"}),
    "no name": (421, {"host": ""}),
    "another site": (403, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    "another site of ours": (403, {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}),
}
ORIGINS = {
    "another origin": {"origin": "http://evil.example"},
    "no origin": {"origin": "null"},
    "another port": {"origin": "http://127.0.0.1:1"},
    "a longer name": {"origin": "http://127.0.0.1.evil.example"},
    "another scheme": {"origin": "file://127.0.0.1"},
}


def body_of(path: str) -> Any:
    return BODIES.get(path, rows([[0.1, 0.2]]) if path.endswith("/infer") else None)


def ask(client: Client, path: str, **headers: str) -> Answer:
    method, _ = ROUTES[path]
    return status(client, method, path, body_of(path), headers)


def status(client: Client, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
    """The answer; of an event stream its head alone."""
    if path != "/api/events" or method != "GET":
        return client(method, path, body, **{name.replace("-", "_"): v for name, v in headers.items()})
    link = client.connection()
    try:
        link.request(method, path, None, client.headers | headers)
        response = link.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, told, b"" if response.status == 200 else response.read())
    finally:
        link.close()


def allowed(site: Site, path: str) -> Client:
    scopes = ROUTES[path][1]
    return site.using(scopes[0]) if scopes else site.client


def test_every_path_is_in_the_matrix() -> None:
    source = Path(service.__file__).read_text(encoding="utf-8")
    table = source.partition("    return [\n")[2].partition("    ]\n")[0]
    written = re.findall(r'^ +(?:get|post|Route)\(f?"?([^",]+)', table, re.MULTILINE)
    assert len(written) == len(table.splitlines()) > 1
    named = {
        "{name}": "page.js",
        "{offset}": "none",
        "{MODEL}": f"/v2/models/{MODEL}",
        "{VERSION}": f"/v2/models/{MODEL}/versions/1",
    }
    named |= {"MODEL": named["{MODEL}"], "VERSION": named["{VERSION}"]}
    for word in sorted(named, key=len, reverse=True):
        written = [path.replace(word, named[word]) for path in written]
    assert set(written) == set(ROUTES) - {COMMAND} | {"/api/commands/page.js"}


@pytest.mark.parametrize("path", ROUTES)
def test_who_may_is_let_in_and_told_the_policy(site: Site, path: str) -> None:
    for client in (allowed(site, path), site.unix):
        answer = ask(client, path)
        assert answer.status == OPEN.get(path, 200), answer
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("attack", FOREIGN)
def test_foreign_pages_reach_nothing(site: Site, path: str, attack: str) -> None:
    expected, headers = FOREIGN[attack]
    for client in (allowed(site, path), site.client):
        answer = ask(client, path, **headers)
        assert answer.status == expected
        assert set(answer.json) == {"error"}
        assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("path", [path for path, (method, _) in ROUTES.items() if method == "POST"])
@pytest.mark.parametrize("attack", ORIGINS)
def test_foreign_origins_change_nothing(site: Site, path: str, attack: str) -> None:
    assert ask(allowed(site, path), path, **ORIGINS[attack]).status == 403


@pytest.mark.parametrize("path", [path for path, (method, _) in ROUTES.items() if method == "POST"])
def test_our_own_pages_and_programs_may_post(site: Site, path: str) -> None:
    own = {"origin": f"http://127.0.0.1:{site.port}", "sec-fetch-site": "same-origin"}
    assert ask(allowed(site, path), path, **own).status == OPEN.get(path, 200)


@pytest.mark.parametrize(
    "path", [path for path in ROUTES if path.startswith("/api") and ROUTES[path][0] == "POST"]
)
@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_forms_reach_no_command(site: Site, path: str, media: str) -> None:
    assert ask(allowed(site, path), path, **{"content-type": media}).status == 415


@pytest.mark.parametrize("path", [path for path, (_, scopes) in ROUTES.items() if scopes])
def test_other_scopes_and_wrong_tokens_are_refused(site: Site, path: str) -> None:
    needed = ROUTES[path][1]
    assert ask(site.client, path).status == 401
    for scope, token in TOKENS.items():
        answer = ask(site.client.using(token), path)
        assert (answer.status in (200, 400)) == (scope in needed), (scope, answer)
        assert answer.status in (200, 400, 403)
    for scheme in ("Basic", "bearer-ish", ""):
        shown = {"authorization": f"{scheme} {TOKENS[needed[0]]}"}
        client = Client(site.port, None, shown, "127.0.0.9")
        assert ask(client, path).status in (401, 429)


def test_what_is_learned_from_comes_with_the_token_for_it(site: Site) -> None:
    sample = {"x": [0.1, 0.2]}
    label = {"id": "nobody", "label": "high"}
    for client, recorded, labelled in (
        (site.client, 401, 401),
        (site.using("scrape"), 403, 403),
        (site.using("read"), 403, 403),
        (site.using("infer"), 200, 409),  # nobody has that id
    ):
        assert client("POST", "/v1/samples?topic=sensors/a", sample).status == recorded
        assert client("POST", "/api/commands/label", label).status == labelled


@pytest.mark.parametrize("path", [path for path, (_, scopes) in ROUTES.items() if scopes])
def test_a_token_in_the_url_opens_nothing(site: Site, path: str) -> None:
    method, scopes = ROUTES[path]
    for name in ("token", "access_token", "auth"):
        url = f"{path}?{name}={TOKENS[scopes[0]]}"
        assert site.client(method, url, body_of(path)).status == 401


METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"}


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (path, method)
        for path, (right, _) in ROUTES.items()
        for method in sorted(METHODS - ({"GET", "HEAD"} if right == "GET" else {"POST"}))
    ],
)
def test_other_methods_are_refused(site: Site, path: str, method: str) -> None:
    right = ROUTES[path][0]
    answer = status(site.unix, method, path, None, {})
    assert answer.status == 405
    assert right in answer.headers["allow"]


@pytest.mark.parametrize(
    "path", [path for path, (method, _) in ROUTES.items() if method == "POST" and path != "/api/logout"]
)
def test_bodies_have_a_limit_before_and_after_inflation(site: Site, path: str) -> None:
    client = allowed(site, path)
    json_ = {"content_type": "application/json"}
    # It is answered before the body is there: to send all of it could end in a broken pipe.
    assert client("POST", path, b" ", content_length=str(MAX_BODY + 1), **json_).status == 413
    bomb = gzip.compress(b" " * 5_000_000)
    assert client("POST", path, bomb, content_encoding="gzip", **json_).status == 413
    assert client("POST", path, b"x", content_encoding="compress", **json_).status == 415


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "more", ["Host: evil.example\r\n\r\n", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
def test_headers_that_contradict_each_other_are_refused(site: Site, path: str, more: str) -> None:
    head = f"{ROUTES[path][0]} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}"
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as link:
        link.sendall(head.encode())
        assert link.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../service.py",
        "/static/..%2fservice.py",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/static/",
        "/static/page.js%00",
        "/etc/passwd",
        "/v2/repository/index",
        "/v2/repository/models/rig/unload",
        f"/v2/models/{MODEL}/config",
        f"/v2/models/{MODEL}/stats",
        "/v2/models/x%2f..%2frig",
        "/api/commands/",
        "/api",
        "/metrics/",
        "//",
    ],
)
def test_there_is_nothing_else(site: Site, path: str) -> None:
    for method in ("GET", "POST"):
        answer = site.unix(method, path, {} if method == "POST" else None)
        assert answer.status in (404, 405), answer
        assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    "command",
    [
        "config.set",
        "config.get",
        "wipe",
        "bundle.install",
        "model.install",
        "weights.get",
        "weights.apply",
        "export",
        "logs.level",
        "capabilities",
        "nonsense",
    ],
)
def test_nothing_writes_the_configuration_or_takes_paths_and_urls(site: Site, command: str) -> None:
    assert site.using("control")("POST", f"/api/commands/{command}", {}).status == 404


class TestSessions:
    def login(self, site: Site, scope: str) -> tuple[Client, str]:
        code = site.code(scope)
        answer = site.client("POST", "/api/login", {"code": code})
        assert answer.status == 200, answer
        cookie = answer.headers["set-cookie"]
        for word in ("HttpOnly", "SameSite=strict", "Path=/"):
            assert word in cookie
        assert code not in cookie
        return Client(site.port, None, {"cookie": cookie.partition(";")[0]}), answer.json["csrf"]

    def test_a_session_does_what_its_code_opens(self, site: Site) -> None:
        browser, _ = self.login(site, "read")
        assert browser("GET", "/api/status").status == 200
        assert browser("GET", "/metrics").status == 403

    def test_what_changes_anything_carries_the_csrf_token(self, site: Site) -> None:
        browser, csrf = self.login(site, "control")
        for given in ({}, {"x_csrf_token": ""}, {"x_csrf_token": csrf[:-1]}):
            assert browser("POST", COMMAND, BODIES[COMMAND], **given).status == 403
        assert browser("POST", COMMAND, BODIES[COMMAND], x_csrf_token=csrf).status == 400

    def test_of_another_session_it_is_worth_nothing(self, site: Site) -> None:
        browser, _ = self.login(site, "control")
        _, csrf = self.login(site, "control")
        assert browser("POST", COMMAND, BODIES[COMMAND], x_csrf_token=csrf).status == 403

    def test_a_session_ends(self, site: Site) -> None:
        browser, csrf = self.login(site, "read")
        assert browser("POST", "/api/logout", {}, x_csrf_token=csrf).status == 204
        assert browser("GET", "/api/status").status == 401

    @pytest.mark.parametrize("code", ["\\ud800", "\\u0000", "\\udc802345678"])
    def test_codes_that_are_no_text_are_wrong_ones(self, site: Site, code: str) -> None:
        body = f'{{"code": "{code}"}}'.encode()
        stranger = site.client.elsewhere("127.0.0.67")
        assert stranger("POST", "/api/login", body, content_type="application/json").status == 401

    def test_a_session_of_the_wrong_scope_can_be_ended_or_replaced(self, site: Site) -> None:
        browser, csrf = self.login(site, "scrape")
        assert browser("GET", "/api/status").status == 403
        answer = browser("POST", "/api/login", {"code": site.code("read")}, x_csrf_token=csrf)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert Client(site.port, None, {"cookie": cookie})("GET", "/api/status").status == 200
        assert browser("GET", "/metrics").status == 401, "the session before has ended"
        again, csrf = self.login(site, "scrape")
        assert again("POST", "/api/logout", {}, x_csrf_token=csrf).status == 204
        assert again("GET", "/metrics").status == 401

    def test_made_up_cookies_open_nothing(self, site: Site) -> None:
        for cookie in ("edged_session=", "edged_session=x", "edged_session=\xe9;;;=", "x"):
            assert Client(site.port, None, {"cookie": cookie})("GET", "/api/status").status == 401


def test_a_link_on_another_site_leads_to_the_page_alone(site: Site) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(site.client, "/", **link).status == 200
    for path in set(ROUTES) - {"/"}:
        assert ask(allowed(site, path), path, **link).status == 403


def test_no_secret_is_in_the_log_or_in_an_answer(site: Site) -> None:
    site.client.elsewhere().using("wrong-" + "0" * 32)("GET", "/api/status")
    log = site.device.log.read_text()
    page = site.using("scrape")("GET", "/metrics").body.decode()
    told = site.using("read")("GET", "/api/status").body.decode()
    for token in (*TOKENS.values(), "wrong-" + "0" * 32):
        assert token not in log + page + told


def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(site: Site) -> None:
    stranger = site.client.elsewhere("127.0.0.66")
    wrong = [stranger("POST", "/api/login", {"code": "x" * 40}).status for _ in range(2 * FAILURES)]
    assert set(wrong) <= {401, 429}
    assert wrong[-1] == 429
    limited = stranger("POST", "/api/login", {"code": "y" * 40})
    assert limited.status == 429
    assert limited.headers["retry-after"] == "60"
    assert stranger("POST", "/api/login", {"code": site.code("read")}).status == 429
    assert stranger.using(TOKENS["read"])("GET", "/api/status").status == 200
    assert site.client("POST", "/api/login", {"code": site.code("read")}).status == 200
    refused = site.using("scrape")("GET", "/metrics").body.decode()
    assert 'edged_http_refused_total{reason="attempts"}' in refused
    assert json.loads(limited.body)["error"]
