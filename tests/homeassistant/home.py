# mypy: ignore-errors
"""Home Assistant itself, as small as it goes: its core with the MQTT integration alone.

Runs under an interpreter that has the package `homeassistant`: `python home.py PORT DIRECTORY`. Reads JSON
lines: `{"do": "states"}`, `{"do": "call", "service": "button.press", "entity": "button.x"}` with further
fields as `data`, `{"do": "automate", ...}`, `{"do": "stop"}`; answers each by one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from homeassistant import bootstrap, config_entries, core, loader
from homeassistant.const import __version__
from homeassistant.helpers import device_registry, entity_registry
from homeassistant.setup import async_setup_component


class Problems(logging.Handler):
    """Warnings and errors of the MQTT integration: what it does not like in what it was sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if any(name in record.name for name in ("mqtt", "template", "config_entries")):
            self.lines.append(f"{record.name}: {record.getMessage()}")


async def start(port: int, directory: str) -> core.HomeAssistant:
    hass = core.HomeAssistant(directory)
    hass.config.skip_pip = True
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    loader.async_setup(hass)
    await bootstrap.async_load_base_functionality(hass)
    await async_setup_component(hass, "homeassistant", {})
    # Neither a web server nor uploads are needed here.
    hass.config.components.update({"http", "file_upload"})
    entry = config_entries.ConfigEntry(
        data={"broker": "127.0.0.1", "port": port, "discovery": True, "protocol": "5"},
        discovery_keys={}, domain="mqtt", entry_id="mqtt", minor_version=2, options={}, source="user",
        subentries_data=None, title="broker", unique_id=None, version=1,
    )  # fmt: skip
    await hass.config_entries.async_add(entry)
    if entry.state is not config_entries.ConfigEntryState.LOADED:
        sys.exit("the MQTT integration could not be set up: is the package paho-mqtt there?")
    await hass.async_start()
    return hass


def states(hass: core.HomeAssistant) -> dict:
    devices = device_registry.async_get(hass).devices.values()
    names = {device.id: device.name for device in devices}
    registry = entity_registry.async_get(hass)
    return {
        "version": __version__,
        "devices": [
            {
                "name": d.name,
                "model": d.model,
                "sw_version": d.sw_version,
                "url": d.configuration_url,
                "via": names.get(d.via_device_id),
            }
            for d in devices
        ],
        "entities": {
            entry.unique_id: {
                "entity": entry.entity_id,
                "enabled": entry.disabled_by is None,
                "device": names.get(entry.device_id),
                "state": state.state if (state := hass.states.get(entry.entity_id)) else None,
                "attributes": dict(state.attributes) if state else {},
            }
            for entry in registry.entities.values()
        },
    }


async def automate(hass: core.HomeAssistant, automation: dict) -> None:
    """Set up one automation, as a person would have it in `automations.yaml`."""
    assert await async_setup_component(hass, "automation", {"automation": [automation]})
    await hass.async_block_till_done()


def prepare(directory: str) -> None:
    Path(directory, "configuration.yaml").touch()


async def main() -> None:
    problems = Problems()
    logging.getLogger().addHandler(problems)
    hass = await start(int(sys.argv[1]), sys.argv[2])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        answer = {}
        if order["do"] == "states":
            await hass.async_block_till_done()
            answer = states(hass)
        elif order["do"] == "call":
            domain, _, service = order["service"].partition(".")
            fields = {"entity_id": order["entity"], **order.get("data", {})}
            await hass.services.async_call(domain, service, fields, blocking=True)
        elif order["do"] == "automate":
            await automate(hass, order["automation"])
        answer["problems"] = problems.lines
        print(json.dumps(answer, default=str), flush=True)  # noqa: T201  the answer
        if order["do"] == "stop":
            break
    await hass.async_stop(force=True)


prepare(sys.argv[2])
asyncio.run(main())
