"""`edged ctl`: ask devices over MQTT, and watch them; answers as tables, and devices live."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from edged.charts.figures import count
from edged.cli import output
from edged.cli.options import Stream
from edged.domain.text import happening, when
from edged.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from edged.config import MqttConfig
    from edged.domain.json_fields import JsonObject

FAILED, REFUSED = 1, 3
REMEDY = "`edged ctl --help` lists the options for the address, user and certificates"
WATCHED = ("status", "state/+", "metrics", "events")
DOTS = 2  # in ids of devices, where a broker makes slashes of them and all devices are watched
_PUBLISHED = re.compile(r"(.+)\.(status|metrics|events|state\.[^.]+)")
_ANSWER = re.compile(r"/(request|response)/status$")
EVENTS_SHOWN = 3
EVENT_LINES = 8  # where one device has the screen to itself
_OF_ALL = ("transaction", "ts", "expires", "nonce", "signature")


def ctl(
    words: Annotated[list[str], Argument(metavar="DEVICE COMMAND [KEY=VALUE]...", help="or: watch [DEVICE]")],
    broker: Annotated[
        str, Option(envvar="EDGED_BROKER", help="mqtt://user@host:port/root, or mqtts://")
    ] = "mqtt://localhost",
    timeout: Annotated[float, Option(min=0.1, help="seconds to wait for a response or progress")] = 30.0,
    wait: Annotated[bool, Option(help="wait for the response, or only send")] = True,
    seconds: Annotated[float | None, Option(min=0.1, help="how long to watch")] = None,
    password_file: Annotated[Path | None, Option(help="file with the password in its first line")] = None,
    ca: Annotated[Path | None, Option(help="CA certificates (PEM)")] = None,
    cert: Annotated[Path | None, Option(help="client certificate (PEM)")] = None,
    key: Annotated[Path | None, Option(help="key of the client certificate (PEM)")] = None,
    stream: Stream = None,
    sign: Annotated[Path | None, Option(metavar="KEY", help="private key that signs the command")] = None,
    as_json: Annotated[bool, Option("--json", help="one JSON object on stdout, or one per line")] = False,
) -> None:
    """Send a command to a device over MQTT and wait for the response, or watch devices live.

    Values are JSON or text: steps=200, dry_run=true, training.every=2h.
    A value that starts with @ names a file with the text: config=@new.yaml.
    `DEVICE capabilities` lists the commands.
    Exit codes: 0 done, 1 failed or no response, 2 usage, 3 refused.
    """
    from edged import logs
    from edged.config import MqttConfig
    from edged.mqtt.control_client import broker_section

    logs.configure("error")
    password = os.environ.get("EDGED_PASSWORD")
    if password_file is not None:
        password = _text(password_file).partition("\n")[0]
    section = broker_section(broker, ca=ca, cert=cert, key=key)
    config = MqttConfig.model_validate(section).with_constants(password=password)
    if words[0] == "watch":
        watched = words[1] if len(words) > 1 else None
        if stream is not None and watched is not None:
            watched = f"{watched}/{stream}"
        _watch(config, watched, seconds, as_json=as_json)
        return
    if len(words) < 2:
        raise ConfigError(
            "which command?", where="ctl", remedy=f"`edged ctl {words[0]} capabilities` lists them"
        )
    device, command, *pairs = words
    device = device if stream is None else f"{device}/{stream}"
    fields = dict(_pair(text) for text in pairs)
    code = _ask(config, device, command, fields, timeout, key=sign, wait=wait, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot be read: {problem}", where=str(path)) from problem


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ConfigError("expected KEY=VALUE", where=text, remedy="such as steps=200")
    if value.startswith("@"):
        return name, _text(Path(value[1:]))
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _ask(
    config: MqttConfig,
    device: str,
    command: str,
    fields: Mapping[str, Any],
    timeout: float,
    *,
    key: Path | None,
    wait: bool,
    as_json: bool,
) -> int:
    from edged.mqtt.control_client import Operator

    with Operator(config, REMEDY) as operator:
        if not wait:
            operator.send(device, command, fields, key)
            return 0
        answer: Mapping[str, Any] = {}
        with output.err.status(f"{device}: {command}") as shown:
            for kind, message in operator.request(device, command, fields, timeout, key):
                if kind == "answer":
                    answer = message
                known = ("transaction", "command", "ts", "status")
                rest = {k: v for k, v in message.items() if k not in known}
                shown.update(f"{device}: {command} {_brief(rest) if kind == 'progress' else ''}")
    if as_json:
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    elif answer["status"] == "ok":
        _show_answer(command, answer["data"])
    else:
        sys.stderr.write(f"edged: {device}: {answer['error']}\n")
    if answer["status"] == "ok":
        return 0
    return REFUSED if answer.get("reason") == "refused" else FAILED


def _brief(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in fields.items())


def _watch(config: MqttConfig, device: str | None, seconds: float | None, *, as_json: bool) -> None:
    """Show devices until interrupted, or for some seconds."""
    from rich.live import Live

    from edged.mqtt.control_client import Operator

    watched = DeviceWatch(config.root)
    with Operator(config, REMEDY) as operator:
        operator.subscribe(watched.filters(device))
        # Connecting may take seconds, as to a broker that must first refuse MQTT 5.
        until = float("inf") if seconds is None else time.monotonic() + seconds
        if as_json:
            for delivery in _until(operator, until):
                message = watched.receive(delivery.topic, delivery.payload)
                if message is not None:
                    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
                    sys.stdout.flush()
            return
        with Live(watched.screen(device), console=output.out, auto_refresh=False) as live:
            for delivery in _until(operator, until):
                if watched.receive(delivery.topic, delivery.payload) is not None or device is not None:
                    live.update(watched.screen(device), refresh=True)


def _until(operator: Any, until: float) -> Any:
    """Messages in pieces of an hour: a queue cannot wait for ever."""
    while time.monotonic() < until:
        yield from operator.messages(min(until, time.monotonic() + 3600.0))


def _show_answer(command: str, data: Mapping[str, Any]) -> None:
    if command == "status":
        output.show_status(data)
    elif command == "capabilities":
        _show_capabilities(data)
    elif command in ("config.get", "config.set"):
        _show_settings(data)
    else:
        output.show_pairs(command, {name: _flat(value) for name, value in data.items()})


def _flat(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict) and {"accepted", "reasons"} <= set(value):
        return f"{'accepted' if value['accepted'] else 'refused'}: {'; '.join(value['reasons'])}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_capabilities(data: Mapping[str, Any]) -> None:
    output.show_pairs(
        data["device"], {k: _flat(v) for k, v in data.items() if k not in ("device", "commands")}
    )
    table = output.new_table("", ("command", "takes", "does"))
    for name, schema in data["commands"].items():
        accepted = [field for field in schema["request"].get("properties", {}) if field not in _OF_ALL]
        table.add_row(name, " ".join(accepted), schema["description"])
    output.out.print(table)


def _show_settings(data: Mapping[str, Any]) -> None:
    values = data.get("values", {})
    sections = {k: v for k, v in values.items() if isinstance(v, dict)}
    flat = {f"{s}.{k}": _flat(v) for s, section in sections.items() for k, v in section.items()}
    flat |= {k: _flat(v) for k, v in values.items() if k not in sections}
    if flat:
        output.show_pairs("in force", flat)
    table = output.new_table("", ("set", "wanted", "in force", ""))
    for key, wanted in data["desired"].items():
        waits = "after a restart" if key in data["needs_restart"] else ""
        table.add_row(key, _flat(wanted), _flat(data["reported"].get(key)), waits)
    output.out.print(table)


class DeviceWatch:
    """What is known of the devices under a root, from the messages that have come."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._devices: dict[str, dict[str, Any]] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        self._event_lines: dict[str, list[str]] = {}

    def filters(self, device: str | None) -> list[str]:
        """Filters of what one device publishes, or all do; also where dots in an id have become slashes."""
        bases = [device] if device else ["/".join("+" * levels) for levels in range(1, DOTS + 2)]
        return [f"{self._root}/{base}/{name}" for base in bases for name in WATCHED]

    def receive(self, topic: str, payload: bytes) -> JsonObject | None:
        """Take in one message; the device's summary, or None where it says nothing new."""
        # RabbitMQ turns dots into slashes: edged/press/7/status is of the device press.7.
        rest = topic.replace("/", ".").removeprefix(self._root.replace("/", ".") + ".")
        found = _PUBLISHED.fullmatch(rest)
        if found is None or _ANSWER.search(topic):
            return None
        device, name = found[1], found[2].replace(".", "/")
        try:
            message = json.loads(payload)
        except ValueError:
            return None
        self._newest.setdefault(device, {})[name] = message
        if name == "events":
            line = f"{when(message['ts'])} {happening(message)}"
            self._event_lines[device] = [line, *self._event_lines.get(device, ())][:EVENT_LINES]
        known = self._devices.setdefault(device, {"device": device, "events": []})
        before = json.dumps(known)
        if name == "events":
            known["events"] = [*known["events"], message["event"]][-EVENTS_SHOWN:]
        else:
            known |= _summary(name, message)
        return known if json.dumps(known) != before else None

    def screen(self, device: str | None) -> RenderableType:
        """One device as `edged status` shows it, with its newest events; or one line for each."""
        from edged.device.status_text import status_of, summary

        status = None if device is None else status_of(self._newest.get(device, {}))
        if device is None or status is None:
            return self._table()
        from rich.console import Group
        from rich.text import Text

        return Group(output.pairs(device, summary(status)), "", *map(Text, self._event_lines.get(device, ())))

    def _table(self) -> Table:
        heads = ("device", "state", "model", "quality", "drift", "training", "samples", "per s", "events")
        table = output.new_table("", heads)
        for name in sorted(self._devices):
            known = self._devices[name]
            table.add_row(name, *(_shown(known.get(head.replace(" ", "_"))) for head in heads[1:]))
        return table


def _summary(name: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if name == "status":
        return {"state": message["state"]}
    if name == "state/model":
        return {"model": message["version"]}
    if name == "state/drift":
        return {"drift": message["signals"]}
    if name == "state/training":
        held = "on hold" if message.get("on_hold") else ", ".join(message["waiting_for"])
        return {"training": held or count(message["runs"], "run")}
    if name == "metrics":
        quality = next((v for k, v in message["live"].items() if k != "labelled"), None)
        running = message["training"]["running"]
        more = (
            {} if running is None else {"training": f"step {running['step']} of {running.get('steps', '?')}"}
        )
        return {
            "quality": quality,
            "samples": message["ingest"]["samples"],
            "per_s": message["ingest"]["per_s"],
            **more,
        }
    return {}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
