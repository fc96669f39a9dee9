"""Discovery messages for Home Assistant, each with all entities of one device.

Source: Home Assistant's documentation of the MQTT integration, "Discovery messages and availability" and
"Device discovery payload" (2024.12 and later).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edged.domain.json_fields import JsonObject
from edged.domain.stream.schema import Task

BIRTH = b"online"
"""What Home Assistant publishes on `<prefix>/status` when it has started."""

MOST_VALUES = 16  # predicted values of a key that get an entity

Announcement = dict[str, Any]
"""What an entity or a device is announced with, as Home Assistant names its fields."""

Components = dict[str, Announcement]

_HISTORICAL = "value_json.historical is defined"
_SPECIAL = re.compile(r"_(?=[0-9a-f]{2})|[^A-Za-z0-9_-]")
_MODELS = {
    "classify": "Classification",
    "regress": "Regression",
    "reconstruct": "Anomaly detection",
    "forecast": "Forecast",
}


@dataclass(frozen=True)
class AnnouncedDevice:
    """Properties of a device that its announcement needs.

    `root` is `<mqtt.root>/<device id>`; `commands` are those that may be sent as they are; `classes` those
    that a label can have now; `targets` how many values a prediction has. `url` leads to the device page.
    Without `predictions` no key has entities. Of one of several streams `root` has its name behind that of
    the device, and `above` is the root of the device, whose status counts.
    """

    id: str
    name: str
    root: str
    task: Task
    version: str
    commands: Collection[str]
    classes: Sequence[str] = ()
    targets: int = 1
    url: str | None = None
    predictions: bool = True
    above: str | None = None


# ---- names ---------------------------------------------------------------------------------


def escape(name: str) -> str:
    """Write a name with what Home Assistant accepts in a discovery topic; different names stay different.

    Another character becomes the hexadecimal digits of its UTF-8 bytes, each between underscores; so does an
    underscore that could be taken for one of these.

    >>> escape("hall.press-7"), escape("hall_press"), escape("a_2e_b")
    ('hall_2e_press-7', 'hall_press', 'a_5f_2e_b')
    """
    return _SPECIAL.sub(lambda found: "".join(f"_{byte:02x}_" for byte in found[0].encode()), name)


def digest(key: str) -> str:
    """Stand for a key where topics and ids cannot hold it.

    >>> digest("pump")
    '0b203c464bb32a27'
    """
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:16]


def topic(prefix: str, root: str, key: str | None = None) -> str:
    """Return the discovery topic of the device with this root, or of one of its keys.

    >>> topic("homeassistant", "edged/press-7")
    'homeassistant/device/press-7/main-edged/config'
    """
    above, _, device = root.rpartition("/")
    kind = "main" if key is None else f"key-{digest(key)}"
    return f"{prefix}/device/{escape(device)}/{kind}-{escape(above)}/config"


def prediction_state(key: str) -> str:
    """Return the topic of the newest prediction of a key, below `state/`."""
    return f"prediction/{digest(key)}"


def labelling_state(key: str) -> str:
    """Return the topic of the label that holds for a key, below `state/`."""
    return f"labelling/{digest(key)}"


def off_option(classes: Collection[str]) -> str:
    """Return the option of the select that ends labelling.

    >>> off_option(["ok", "worn"]), off_option(["on", "off"])
    ('off', 'not labelling')
    """
    return "not labelling" if "off" in classes else "off"


# ---- messages ------------------------------------------------------------------------------


def announcement(
    device: AnnouncedDevice, keys: Sequence[str], *, gone: Mapping[str, str] | None = None
) -> Announcement:
    """Build the discovery message of the main device, with the entities of its `keys`: one, or none.

    `gone` are components of earlier messages, with their platforms: Home Assistant removes them.
    """
    block = {
        "identifiers": [_identity(device)],
        "name": device.name,
        "manufacturer": "edged",
        "model": _MODELS[device.task],
        "sw_version": device.version,
        "serial_number": device.id,
    }
    if device.url is not None:
        block["configuration_url"] = device.url
    if device.above is not None:
        block["via_device"] = f"edged:{device.above}"
    components = _main(device)
    for key in keys:
        components |= {f"{name}_{digest(key)}": part for name, part in _of_key(device, key).items()}
    return _message(device, block, components, gone or {})


def hub_announcement(device: AnnouncedDevice) -> JsonObject:
    """Build the discovery message of a device with several streams, each of which is a device below it."""
    block = {
        "identifiers": [_identity(device)],
        "name": device.name,
        "manufacturer": "edged",
        "sw_version": device.version,
        "serial_number": device.id,
    }
    if device.url is not None:
        block["configuration_url"] = device.url
    return _message(device, block, {"connection": _health(device)["connection"]}, {})


def key_announcement(
    device: AnnouncedDevice, key: str, *, gone: Mapping[str, str] | None = None
) -> Announcement:
    """Build the discovery message of one key, as a device of its own below the main one."""
    block = {
        "identifiers": [f"{_identity(device)}:{digest(key)}"],
        "name": f"{device.name} {key}",
        "manufacturer": "edged",
        "model": _MODELS[device.task],
        "via_device": _identity(device),
    }
    return _message(device, block, _of_key(device, key), gone or {})


def _identity(device: AnnouncedDevice) -> str:
    return f"edged:{device.root}"


def _message(
    device: AnnouncedDevice, block: Announcement, components: Components, gone: Mapping[str, str]
) -> Announcement:
    identity = block["identifiers"][0]
    present = {name: {"unique_id": f"{identity}/{name}", **fields} for name, fields in components.items()}
    removed = {name: {"platform": platform} for name, platform in gone.items() if name not in components}
    return {
        "device": block,
        "origin": {"name": "edged", "sw_version": device.version},
        "availability": [_online(device)],
        "availability_mode": "all",
        "qos": 1,
        "components": present | removed,
    }


def _online(device: AnnouncedDevice) -> dict[str, str]:
    return {
        "topic": f"{device.above or device.root}/status",
        "value_template": "{{ value_json.state }}",
        "payload_available": "online",
        "payload_not_available": "offline",
    }


# ---- the main device -----------------------------------------------------------------------


def _main(device: AnnouncedDevice) -> Components:
    return _health(device) | _learning(device) | _diagnostics(device) | _buttons(device)


def _sensor(device: AnnouncedDevice, name: str, place: str, template: str, **more: Any) -> Announcement:
    return {
        "platform": "sensor",
        "name": name,
        "state_topic": f"{device.root}/{place}",
        "value_template": template,
        **more,
    }


def _binary(device: AnnouncedDevice, name: str, place: str, condition: str, **more: Any) -> Announcement:
    template = f"{{{{ 'ON' if {condition} else 'OFF' }}}}"
    return _sensor(device, name, place, template, **more) | {"platform": "binary_sensor"}


def _event(device: AnnouncedDevice, name: str, of: str, types: list[str], fields: str, **more: Any) -> Any:
    """An entity of events that ignores those that are sent late: they are none of now."""
    template = f"{{{{ {{{fields}}} | to_json if {of} and not ({_HISTORICAL}) else '' }}}}"
    return _sensor(device, name, "events", template, **more) | {"platform": "event", "event_types": types}


def _health(device: AnnouncedDevice) -> Components:
    health, diagnostic = "state/health", {"entity_category": "diagnostic"}
    return {
        "problem": _binary(
            device, "Problem", health, "value_json.state != 'ok'", device_class="problem",
            json_attributes_topic=f"{device.root}/{health}", **diagnostic,
        ),
        "connection": _binary(
            device, "Connection", "status", "value_json.state == 'online'", device_class="connectivity",
            availability=[], **diagnostic,
        ) | {"state_topic": f"{device.above or device.root}/status"},
    }  # fmt: skip


def _learning(device: AnnouncedDevice) -> Components:
    found = {
        "quality": _quality(device),
        "untrained": _binary(
            device, "Untrained", "state/model", "value_json.missing is not none", icon="mdi:school-outline",
            entity_category="diagnostic",
            json_attributes_topic=f"{device.root}/state/model",
            json_attributes_template="{{ {'missing': value_json.missing} | to_json }}",
        ),
        "training": _binary(
            device, "Training", "state/training", "value_json.running", device_class="running",
        ),
        "drift": _event(
            device, "Drift", "value_json.event == 'drift_detected'", ["warning", "drift"],
            "'event_type': value_json.level, 'source': value_json.source, 'features': value_json.features",
            icon="mdi:chart-bell-curve",
        ),
    }  # fmt: skip
    if {"pause", "resume"} <= set(device.commands):
        found["automatic"] = {
            "platform": "switch",
            "name": "Automatic training",
            "icon": "mdi:school",
            "entity_category": "config",
            "state_topic": f"{device.root}/state/training",
            "value_template": "{{ 'OFF' if value_json.on_hold else 'ON' }}",
            "state_on": "ON",
            "state_off": "OFF",
            "command_topic": f"{device.root}/request/pause",
            "payload_on": '{"what": "training", "hold": false}',
            "payload_off": '{"what": "training"}',
        }
    return found


def _quality(device: AnnouncedDevice) -> Announcement:
    """Accuracy in percent, or the mean error; unknown until there are labels."""
    measured: Announcement = {"state_class": "measurement"}
    if device.task != "classify":
        return _sensor(
            device, "Error", "state/quality", "{{ value_json.error }}", icon="mdi:plus-minus", **measured
        )
    template = "{{ none if value_json.accuracy is none else 100 * value_json.accuracy }}"
    percent = {
        "unit_of_measurement": "%",
        "icon": "mdi:check-decagram",
        "suggested_display_precision": 1,
    }
    return _sensor(device, "Accuracy", "state/quality", template, **percent, **measured)


def _diagnostics(device: AnnouncedDevice) -> Components:
    diagnostic = {"entity_category": "diagnostic"}
    return {
        "version": _sensor(
            device, "Model", "state/model", "{{ value_json.version }}", icon="mdi:brain", **diagnostic
        ),
        "samples": _sensor(
            device, "Samples", "state/buffer", "{{ value_json.samples }}", state_class="total_increasing",
            icon="mdi:counter", enabled_by_default=False, **diagnostic,
        ),
        "outbox": _sensor(
            device, "Messages waiting", "state/buffer", "{{ value_json.outbox.pending }}",
            state_class="measurement", icon="mdi:tray-full", **diagnostic,
        ),
        "last_training": _sensor(
            device, "Last training", "state/training",
            "{{ as_datetime(value_json.last.ended) if value_json.last else none }}",
            device_class="timestamp", json_attributes_topic=f"{device.root}/state/training", **diagnostic,
        ),
        "temperature": _sensor(
            device, "Temperature", "metrics",
            f"{{{{ '' if {_HISTORICAL} else value_json.host.temperature_c }}}}",
            unit_of_measurement="°C", device_class="temperature", state_class="measurement", **diagnostic,
        ),
    }  # fmt: skip


def _button(device: AnnouncedDevice, name: str, icon: str, command: str, payload: str) -> Announcement:
    return {
        "platform": "button",
        "name": name,
        "icon": icon,
        "command_topic": f"{device.root}/request/{command}",
        "payload_press": payload,
    }


def _buttons(device: AnnouncedDevice) -> Components:
    found = {
        "train": _button(device, "Train now", "mdi:school", "train", "{}"),
        "rollback": _button(device, "Previous model", "mdi:history", "rollback", "{}"),
    }
    if device.task in ("classify", "regress"):
        found["label.undo"] = _button(device, "Undo last label", "mdi:undo", "label.undo", "{}")
    return {command: button for command, button in found.items() if command in device.commands}


# ---- a key ---------------------------------------------------------------------------------


def _of_key(device: AnnouncedDevice, key: str) -> Components:
    """The entities of a key, by name."""
    if not device.predictions:
        return {}
    found = _predicted(device, key)
    if device.task == "reconstruct":
        if "accept" in device.commands:
            payload = json.dumps({"key": key})
            found["accept"] = _button(device, "Mark as normal", "mdi:check", "accept", payload)
            found["accept"]["entity_category"] = "config"
    elif device.task == "classify":
        found |= _labels(device, key)
    return found


def _predicted(device: AnnouncedDevice, key: str) -> Components:
    """What the newest prediction says: unknown while untrained, unavailable while the sensor is silent."""
    place = f"state/{prediction_state(key)}"
    silence = {
        "topic": f"{device.root}/{place}",
        "value_template": "{{ 'offline' if value_json.silent else 'online' }}",
    }
    seen: Announcement = {"availability": [_online(device), silence]}
    if device.task == "classify":
        return {
            "prediction": _sensor(
                device, "Prediction", place, "{{ none if value_json.untrained else value_json.label }}",
                device_class="enum", options=list(device.classes), icon="mdi:tag", **seen,
            ),
            "confidence": _sensor(
                device, "Confidence", place,
                "{{ none if value_json.untrained or value_json.confidence is none"
                " else 100 * value_json.confidence }}",
                unit_of_measurement="%", state_class="measurement", suggested_display_precision=0,
                icon="mdi:gauge", **seen,
            ),
        }  # fmt: skip
    if device.task == "reconstruct":
        score = _number(device, "Anomaly score", place, 0, seen)
        alarm = _binary(device, "Alarm", place, "value_json.alarm", device_class="problem", **seen)
        return {"prediction": score, "alarm": alarm}
    if device.targets == 1:
        return {"prediction": _number(device, "Prediction", place, 0, seen)}
    return {
        f"prediction{at + 1}": _number(device, f"Prediction {at + 1}", place, at, seen)
        for at in range(min(device.targets, MOST_VALUES))
    }


def _number(device: AnnouncedDevice, name: str, place: str, at: int, seen: Announcement) -> Announcement:
    template = (
        f"{{{{ none if value_json.untrained or value_json.output is none else value_json.output[{at}] }}}}"
    )
    return _sensor(device, name, place, template, state_class="measurement", icon="mdi:chart-line", **seen)


def _labels(device: AnnouncedDevice, key: str) -> Components:
    # A JSON string is a string of Jinja, too, as long as only what must be is escaped.
    quoted, off = json.dumps(key, ensure_ascii=False), off_option(device.classes)
    found: Components = {
        "wanted": _event(
            device, "Label wanted",
            f"value_json.event == 'label_requested' and value_json.key == {quoted}", ["label_wanted"],
            "'event_type': 'label_wanted', 'id': value_json.id, 'ts': value_json.sample_ts,"
            " 'answer': value_json.answer, 'confidence': value_json.confidence",
            icon="mdi:tag-outline",
        )
    }  # fmt: skip
    if "label" in device.commands:
        found["label"] = {
            "platform": "select",
            "name": "Label as",
            "icon": "mdi:tag-edit",
            "entity_category": "config",
            "options": [off, *device.classes],
            "state_topic": f"{device.root}/state/{labelling_state(key)}",
            "value_template": f"{{{{ value_json.label or {json.dumps(off)} }}}}",
            "command_topic": f"{device.root}/request/label",
            "command_template": (
                f'{{{{ {{"key": {quoted}, "hold": true,'
                f' "label": none if value == {json.dumps(off)} else value}} | to_json }}}}'
            ),
        }
    return found
