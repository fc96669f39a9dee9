"""Getting in: a device on the network without token files, its own certificate, and paired browsers."""

from __future__ import annotations

import http.client
import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.device.web.http.authentication import FAILURES
from edged.device.web.http.sockets import FILE, fingerprint
from edged.storage.web_access import LETTERS, MOST_WRONG
from edged.workbench.demo.broker import free_port
from tests.device.web.client import Client
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

pytestmark = pytest.mark.slow

COOKIE = "__Host-edged_session"


@dataclass
class Browser(Client):
    """A browser that trusts the certificates in a file, and nothing else; it keeps one cookie."""

    trusts: Path | None = None
    cookie: str | None = None
    csrf: dict[str, str] = field(default_factory=dict)

    def connection(self) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=self.trusts)
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20, context=context, source_address=(self.source, 0)
        )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request with the cookie, and the CSRF token where there is one."""
        sent = {"cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}
        return self(method, path, body, **sent, **self.csrf)

    def pair(self, code: str) -> int:
        """Type a code into the form."""
        answer = self.ask("POST", "/api/login", {"code": code})
        if answer.status == 200:
            cookie = answer.headers["set-cookie"]
            assert {"HttpOnly", "Secure", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
            self.cookie = cookie.partition(";")[0].partition("=")[2]
            self.csrf = {"x_csrf_token": answer.json["csrf"]}
        return int(answer.status)


@dataclass
class Lan:
    """A device that listens on all addresses, with no token file."""

    device: Device
    port: int

    def browser(self, source: str = "127.0.0.1") -> Browser:
        return Browser(self.port, source=source, trusts=self.device.state / FILE)

    def code(self, *options: str) -> str:
        told: dict[str, Any] = self.device.cli("web", "pair", *options, str(self.device.path))
        return str(told["code"])


@pytest.fixture(scope="module")
def lan(make_brokers: MakeBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    broker, port = make_brokers(), free_port()
    device = Device(
        tmp_path_factory.mktemp("lan"), broker.port, {"features": 2, "classes": ["low", "high"]},
        web={"listen": f"0.0.0.0:{port}"}, training={"new_labels": 10**6, "every": None},
    )  # fmt: skip
    with running(device, broker.port):
        site = Lan(device, port)
        wait_until(lambda: site.browser()("GET", "/v2/health/live").status == 200)
        yield site


def wrong(code: str) -> str:
    return code[:-1] + LETTERS[(LETTERS.index(code[-1]) + 1) % len(LETTERS)]


def test_without_a_code_nothing_is_open(lan: Lan) -> None:
    browser = lan.browser()
    page = browser("GET", "/")
    assert "Code</label>" in page.body.decode()
    assert "edged web pair" in page.body.decode()
    for path in ("/api/status", "/api/page", "/metrics", "/v2"):
        assert browser("GET", path).status == 401


def test_the_certificate_is_the_devices_own(lan: Lan) -> None:
    path = lan.device.state / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = lan.device.cli("web", "pair", str(lan.device.path))
    assert told["certificate"] == fingerprint(path)
    assert told["certificate"] in lan.device.log.read_text()
    with pytest.raises(ssl.SSLCertVerificationError):
        Browser(lan.port)("GET", "/")
    der = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", lan.port)))
    assert ssl.PEM_cert_to_DER_cert(path.read_text().partition("-----END PRIVATE KEY-----\n")[2]) == der
    plain = http.client.HTTPConnection("127.0.0.1", lan.port, timeout=20)
    plain.request("GET", "/")
    with pytest.raises((ConnectionError, http.client.BadStatusLine)):
        plain.getresponse()
    plain.close()


def test_a_code_lets_one_browser_read(lan: Lan) -> None:
    code, first, second = lan.code("--name", "<kitchen>"), lan.browser(), lan.browser("127.0.0.2")
    assert first.pair(code) == 200
    assert second.pair(code) == 401
    assert first.ask("GET", "/api/status").status == 200
    assert second.ask("GET", "/api/status").status == 401
    assert "You are reading as &lt;kitchen&gt;" in first.ask("GET", "/").body.decode()
    assert first.ask("POST", "/api/commands/train", {}).status == 403
    assert first.ask("POST", "/api/commands/label", {"id": "1", "label": "low"}).status == 403
    assert second.pair(lan.code()) == 200
    assert first.cookie != second.cookie


def test_codes_for_labels_and_control(lan: Lan) -> None:
    labels, control = lan.browser(), lan.browser()
    assert labels.pair(lan.code("--label")) == control.pair(lan.code("--control")) == 200
    asked = {"id": "none", "label": "low"}
    assert "no sample is here" in labels.ask("POST", "/api/commands/label", asked).json["error"]
    assert labels.ask("POST", "/api/commands/pause", {"what": "serving"}).status == 403
    assert control.ask("POST", "/api/commands/pause", {"what": "serving"}).status == 200
    assert control.ask("POST", "/api/commands/resume", {"what": "serving"}).status == 200
    control.csrf = {}
    assert control.ask("POST", "/api/commands/pause", {"what": "serving"}).status == 403


def test_a_browser_is_logged_out(lan: Lan) -> None:
    """By itself, by its number, and all of them; from the next request on."""
    browsers = [lan.browser() for _ in range(4)]
    for number, browser in enumerate(browsers):
        assert browser.pair(lan.code("--name", f"desk {number}")) == 200
    assert browsers[0].ask("POST", "/api/logout", {}).status == 204
    config = str(lan.device.path)
    sessions = lan.device.cli("web", "sessions", config)["sessions"]
    numbers = {one["name"]: one["number"] for one in sessions}
    assert "desk 0" not in numbers
    assert lan.device.cli("web", "forget", config, str(numbers["desk 1"])) == {"ended": 1}
    assert [browser.ask("GET", "/api/status").status for browser in browsers] == [401, 401, 200, 200]
    assert lan.device.cli("web", "forget", "--all", config)["ended"] >= 2
    assert [browser.ask("GET", "/api/status").status for browser in browsers] == [401] * 4


def test_guessing_is_slowed_down_and_voids_the_code(lan: Lan) -> None:
    code = lan.code()
    guesser = lan.browser("127.0.0.3")
    answers = [guesser.pair(wrong(code)) for _ in range(FAILURES + 2)]
    assert answers == [401] * FAILURES + [429] * 2
    assert guesser.pair(code) == 429, "after too many guesses not even the right one is looked at"
    for number in range(MOST_WRONG - FAILURES):
        assert lan.browser(f"127.0.1.{number + 1}").pair(wrong(code)) == 401
    assert lan.browser().pair(code) == 401
    assert lan.browser("127.0.0.4").pair(lan.code()) == 200


def test_other_names_are_refused(lan: Lan) -> None:
    assert lan.browser()("GET", "/", Host="evil.example").status == 421
    for ours in (f"localhost:{lan.port}", "192.0.2.7", "[2001:db8::7]:8443", f"{socket.gethostname()}.local"):
        assert lan.browser()("GET", "/", Host=ours).status == 200


def test_a_kill_between_pairing_and_use(lan: Lan) -> None:
    """Last, as it ends the daemon: codes and sessions outlive it, and the certificate is the same."""
    before, browser, late = fingerprint(lan.device.state / FILE), lan.browser(), lan.browser()
    assert browser.pair(lan.code()) == 200
    code = lan.code()
    lan.device.stop(signal.SIGKILL)
    lan.device.start()

    def answers() -> bool:
        try:
            return bool(browser.ask("GET", "/api/status").status == 200)
        except OSError:
            return False

    wait_until(answers, 60)
    assert late.pair(code) == 200
    assert fingerprint(lan.device.state / FILE) == before
