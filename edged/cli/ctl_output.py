"""What `edged ctl` shows a person: answers as tables, and devices live."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from edged.cli.output import new_table, out, pairs, show_pairs, show_status
from edged.domain.text import happening, runs, status_of, summary, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.table import Table

EVENTS_SHOWN = 3
EVENTS_TOLD = 8  # where one device has the screen to itself


def show_answer(command: str, data: Mapping[str, Any]) -> None:
    """The data of an answer."""
    if command == "status":
        show_status(data)
    elif command == "capabilities":
        _show_capabilities(data)
    elif command in ("config.get", "config.set"):
        _show_settings(data)
    else:
        show_pairs(command, {name: _flat(value) for name, value in data.items()})


def _flat(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict) and {"accepted", "reasons"} <= set(value):
        return f"{'accepted' if value['accepted'] else 'refused'}: {'; '.join(value['reasons'])}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show_capabilities(data: Mapping[str, Any]) -> None:
    show_pairs(data["device"], {k: _flat(v) for k, v in data.items() if k not in ("device", "commands")})
    table = new_table("", ("command", "takes", "does"))
    for name, told in data["commands"].items():
        takes = [field for field in told["request"].get("properties", {}) if field not in _OF_ALL]
        table.add_row(name, " ".join(takes), told["description"])
    out.print(table)


_OF_ALL = ("transaction", "ts", "expires", "nonce", "signature")


def _show_settings(data: Mapping[str, Any]) -> None:
    values = data.get("values", {})
    sections = {k: v for k, v in values.items() if isinstance(v, dict)}
    flat = {f"{s}.{k}": _flat(v) for s, section in sections.items() for k, v in section.items()}
    flat |= {k: _flat(v) for k, v in values.items() if k not in sections}
    if flat:
        show_pairs("in force", flat)
    table = new_table("", ("set", "wanted", "in force", ""))
    for key, wanted in data["desired"].items():
        waits = "after a restart" if key in data["needs_restart"] else ""
        table.add_row(key, _flat(wanted), _flat(data["reported"].get(key)), waits)
    out.print(table)


class DeviceWatch:
    """What is known of the devices under a root, from the messages that have come."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._devices: dict[str, dict[str, Any]] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        self._told: dict[str, list[str]] = {}

    def receive(self, topic: str, payload: bytes) -> dict[str, Any] | None:
        """Take in one message; the device's summary, or None where it says nothing new."""
        device, _, name = topic.removeprefix(f"{self._root}/").partition("/")
        try:
            told = json.loads(payload)
        except ValueError:
            return None
        self._newest.setdefault(device, {})[name] = told
        if name == "events":
            line = f"{when(told['ts'])} {happening(told)}"
            self._told[device] = [line, *self._told.get(device, ())][:EVENTS_TOLD]
        known = self._devices.setdefault(device, {"device": device, "events": []})
        before = json.dumps(known)
        if name == "events":
            known["events"] = [*known["events"], told["event"]][-EVENTS_SHOWN:]
        else:
            known |= _summary(name, told)
        return known if json.dumps(known) != before else None

    def screen(self, device: str | None) -> RenderableType:
        """One device as `edged status` shows it, with its newest events; or one line for each."""
        status = None if device is None else status_of(self._newest.get(device, {}))
        if device is None or status is None:
            return self._table()
        return Group(pairs(device, summary(status)), "", *map(Text, self._told.get(device, ())))

    def _table(self) -> Table:
        """Return a table with one line per device."""
        heads = ("device", "state", "model", "quality", "drift", "training", "samples", "per s", "events")
        table = new_table("", heads)
        for name in sorted(self._devices):
            known = self._devices[name]
            table.add_row(name, *(_shown(known.get(head.replace(" ", "_"))) for head in heads[1:]))
        return table


def _summary(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    if name == "status":
        return {"state": told["state"]}
    if name == "state/model":
        return {"model": told["version"]}
    if name == "state/drift":
        return {"drift": told["signals"]}
    if name == "state/training":
        held = "on hold" if told.get("on_hold") else ", ".join(told["waiting_for"])
        return {"training": held or runs(told["runs"])}
    if name == "metrics":
        quality = next((v for k, v in told["live"].items() if k != "labelled"), None)
        running = told["training"]["running"]
        more = (
            {} if running is None else {"training": f"step {running['step']} of {running.get('steps', '?')}"}
        )
        return {
            "quality": quality,
            "samples": told["ingest"]["samples"],
            "per_s": told["ingest"]["per_s"],
            **more,
        }
    return {}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
