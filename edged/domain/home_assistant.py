"""What Home Assistant is told of a device: one message with all its entities.

Source: Home Assistant's documentation of the MQTT integration, "Discovery messages and availability" and
"Device discovery payload" (2024.12 and later).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.domain.stream.schema import Task

BIRTH = b"online"
"""What Home Assistant publishes on `<prefix>/status` when it has started."""

BUTTONS = {
    # command: what the button is called, its icon, what it sends
    "train": ("Train now", "mdi:school", "{}"),
    "rollback": ("Previous model", "mdi:undo", "{}"),
    "pause": ("Pause training", "mdi:pause", '{"what": "training"}'),
    "resume": ("Resume training", "mdi:play", '{"what": "training"}'),
}


@dataclass(frozen=True)
class AnnouncedDevice:
    """What is announced of a device.

    `root` is `<mqtt.root>/<device id>`; `commands` are those that may be sent as they are.
    """

    id: str
    name: str
    root: str
    task: Task
    version: str
    commands: Collection[str]


def topic(prefix: str, device: str) -> str:
    """Where a device is announced; Home Assistant takes no dots in such a name.

    >>> topic("homeassistant", "hall.press-7")
    'homeassistant/device/hall__press-7/config'
    """
    return f"{prefix}/device/{device.replace('.', '__')}/config"


def announcement(device: AnnouncedDevice) -> dict[str, Any]:
    """Build the discovery message of a device."""
    return {
        "device": {
            "identifiers": [f"edged_{device.id}"],
            "name": device.name,
            "manufacturer": "edged",
            "model": {
                "classify": "Classification",
                "regress": "Regression",
                "reconstruct": "Anomaly detection",
                "forecast": "Forecast",
            }[device.task],
            "sw_version": device.version,
        },
        "origin": {"name": "edged", "sw_version": device.version},
        "availability": [
            {
                "topic": f"{device.root}/status",
                "value_template": "{{ value_json.state }}",
                "payload_available": "online",
                "payload_not_available": "offline",
            }
        ],
        "qos": 1,
        "components": {
            name: {"unique_id": f"edged_{device.id}_{name}", **fields}
            for name, fields in (_sensors(device) | _update(device) | _buttons(device)).items()
        },
    }


def _sensor(device: AnnouncedDevice, name: str, place: str, template: str, **more: Any) -> dict[str, Any]:
    return {
        "platform": "sensor",
        "name": name,
        "state_topic": f"{device.root}/{place}",
        "value_template": template,
        **more,
    }


def _sensors(device: AnnouncedDevice) -> dict[str, dict[str, Any]]:
    measured = {"state_class": "measurement"}
    return {
        "version": _sensor(device, "Model", "state/model", "{{ value_json.version }}", icon="mdi:brain"),
        "quality": _quality(device),
        "drift": _sensor(
            device, "Drift", "state/drift",
            "{{ value_json.last.level if value_json.last else 'none' }}",
            device_class="enum", options=["none", "warning", "drift"],
            json_attributes_topic=f"{device.root}/state/drift", icon="mdi:chart-bell-curve",
        ),
        "buffer": _sensor(
            device, "Samples kept", "state/buffer", "{{ value_json.rows }}",
            unit_of_measurement="samples", icon="mdi:database", **measured,
        ),
        "outbox": _sensor(
            device, "Messages waiting", "state/buffer", "{{ value_json.outbox.pending }}",
            unit_of_measurement="messages", entity_category="diagnostic", icon="mdi:tray-full", **measured,
        ),
        "last_training": _sensor(
            device, "Last training", "state/training",
            "{{ as_datetime(value_json.last.ended) if value_json.last else none }}", device_class="timestamp",
            json_attributes_topic=f"{device.root}/state/training",
        ),
        "temperature": _sensor(
            device, "Temperature", "metrics", "{{ value_json.host.temperature_c }}",
            unit_of_measurement="°C", device_class="temperature", entity_category="diagnostic", **measured,
        ),
    }  # fmt: skip


def _quality(device: AnnouncedDevice) -> dict[str, Any]:
    """Accuracy in percent, or the mean error; unknown until there are labels."""
    measured = {"state_class": "measurement"}
    if device.task != "classify":
        template = "{{ value_json.live.error }}"
        return _sensor(device, "Error", "metrics", template, icon="mdi:plus-minus", **measured)
    template = (
        "{{ none if value_json.live.accuracy is none else (100 * value_json.live.accuracy) | round(1) }}"
    )
    percent = {"unit_of_measurement": "%", "icon": "mdi:check-decagram"}
    return _sensor(device, "Accuracy", "metrics", template, **percent, **measured)


def _update(device: AnnouncedDevice) -> dict[str, dict[str, Any]]:
    """The model as an update entity. Nothing waits at the gate for a person: what is newest is installed."""
    place = f"{device.root}/state/model"
    return {
        "model": {
            "platform": "update",
            "name": "Installed model",
            "title": "Model",
            "state_topic": place,
            "value_template": "{{ value_json.version }}",
            "latest_version_topic": place,
            "latest_version_template": "{{ value_json.version }}",
            "entity_category": "diagnostic",
        }
    }


def _buttons(device: AnnouncedDevice) -> dict[str, dict[str, Any]]:
    return {
        command: {
            "platform": "button",
            "name": name,
            "icon": icon,
            "command_topic": f"{device.root}/request/{command}",
            "payload_press": payload,
            "qos": 1,
        }
        for command, (name, icon, payload) in BUTTONS.items()
        if command in device.commands
    }
