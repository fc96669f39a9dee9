"""`edged web`: browsers that may open the device page."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from edged.cli.options import AsJson, ConfigPath, print_json
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config import WebConfig
    from edged.storage.web_access import Pairing

web_app = typer.Typer(help="Manage the browsers that can open the device page.", no_args_is_help=True)


@web_app.command("pair")
def pair(
    config: ConfigPath,
    label: Annotated[bool, Option("--label", help="also allow labelling")] = False,
    control: Annotated[
        bool, Option("--control", help="also allow labelling, training, pausing and rollback")
    ] = False,
    name: Annotated[str, Option(help="name of the browser")] = "",
    as_json: AsJson = False,
) -> None:
    """Show a code that pairs one browser, valid for 10 minutes; the daemon can keep running."""
    from edged.device.web.http.authentication import PAIRED
    from edged.device.web.http.sockets import tunnel
    from edged.storage.web_access import CODE_SECONDS

    web, pairing = _opened(config)
    scope = "control" if control else "label" if label else "read"
    result: dict[str, Any] = {
        "code": pairing.new_code(PAIRED[scope], name),
        "scope": scope,
        "until": time.time() + CODE_SECONDS,
        "page": _page(web),
        "certificate": _certificate(config, web),
        "tunnel": tunnel(web),
    }
    if as_json:
        print_json(result)
        return
    may = {"read": "read", "label": "read and label", "control": "read, label and control"}[scope]
    until = time.strftime("%H:%M", time.localtime(result["until"]))
    lines = [f"code         {result['code']}   (one browser, until {until}; it may {may})"]
    if result["page"] is not None:
        lines.append(f"page         {result['page']}")
    if result["certificate"] is not None:
        lines.append(f"certificate  SHA-256 {result['certificate']}")
        lines.append("             compare it with what the browser shows before you type the code")
    lines.append(f"over SSH     {result['tunnel']}")
    sys.stdout.write("\n".join(lines) + "\n")


@web_app.command("sessions")
def sessions(config: ConfigPath, as_json: AsJson = False) -> None:
    """List the paired browsers."""
    _, pairing = _opened(config)
    found = pairing.sessions()
    if as_json:
        fields = ("number", "name", "scopes", "begun", "until")
        print_json({"sessions": [{field: getattr(one, field) for field in fields} for one in found]})
        return
    for one in found:
        day = time.strftime("%Y-%m-%d", time.localtime(one.begun))
        sys.stdout.write(f"{one.number:>4}  {one.name:<40}  {', '.join(one.scopes):<22}  since {day}\n")
    if not found:
        sys.stderr.write("no browser is paired\n")


@web_app.command("forget")
def forget(
    config: ConfigPath,
    number: Annotated[int | None, Argument(help="number of the session; see `edged web sessions`")] = None,
    everything: Annotated[bool, Option("--all", help="all sessions and codes")] = False,
    as_json: AsJson = False,
) -> None:
    """Log out a browser immediately."""
    if (number is None) != everything:
        raise ConfigError("name one session, or --all", where="edged web forget")
    _, pairing = _opened(config)
    gone = pairing.forget(number)
    print_json({"ended": gone}) if as_json else sys.stdout.write(f"{gone} logged out\n")


def _opened(path: Path) -> tuple[WebConfig, Pairing]:
    from edged.clock import SystemClock
    from edged.config import loader
    from edged.storage.web_access import Pairing

    loaded = loader.load_all(path)[0]
    if loaded.web is None:
        raise ConfigError("the device page is off", where=f"{path}: web", remedy="add `web: {}`")
    return loaded.web, Pairing(loaded.device_dir, SystemClock())


def _page(web: WebConfig) -> str | None:
    from edged.device.web.http.sockets import names_of

    if web.address is None:
        return None
    host = web.address[0] if web.is_local else names_of(web)[0]
    scheme = "http" if web.is_local and web.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{web.address[1]}/"


def _certificate(path: Path, web: WebConfig) -> str | None:
    """The fingerprint of the certificate; None without TLS, or before the daemon has made one."""
    from edged.config import loader
    from edged.device.web.http.sockets import FILE, fingerprint

    if web.tls is not None:
        return fingerprint(web.tls.cert_file)
    own = loader.load_all(path)[0].device_dir / FILE
    return fingerprint(own) if not web.is_local and own.exists() else None
