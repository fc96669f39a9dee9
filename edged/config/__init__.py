"""The configuration's sections, checked by pydantic, with defaults that work.

`edged.config.loader` reads them from YAML.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PrivateAttr, model_validator

from edged.config.commands import CommandsConfig, InstallConfig, WeightsConfig
from edged.config.fleet import FleetConfig
from edged.config.judging import AnomalyConfig, DriftConfig, GateConfig, LabelsConfig
from edged.config.mqtt import DiscoveryConfig, MqttConfig, SparkplugConfig, TlsConfig
from edged.config.serving import LogConfig, ReportConfig, ServingConfig
from edged.config.storage import OutboxConfig, StorageConfig
from edged.config.stream import MAX_WINDOW_KEYS, StreamConfig
from edged.config.streams import FOLDER
from edged.config.training import ModelConfig, TrainingConfig
from edged.config.values import Name, Section, all_defaults
from edged.config.web import WebConfig

__all__ = [
    "AnomalyConfig",
    "CommandsConfig",
    "Config",
    "DeviceConfig",
    "DriftConfig",
    "FleetConfig",
    "GateConfig",
    "MqttConfig",
    "ServingConfig",
    "StorageConfig",
    "StreamConfig",
    "TlsConfig",
    "TrainingConfig",
    "WebConfig",
]


class DeviceConfig(Section):
    """Identity of this device."""

    id: Name = Field(description="name of the device: part of every topic and of the client ID")


class Config(Section):
    """The whole configuration of one device with one stream, or of one stream of several."""

    _name: str = PrivateAttr("")
    device: DeviceConfig
    mqtt: MqttConfig = all_defaults()
    stream: StreamConfig
    model: ModelConfig = all_defaults()
    training: TrainingConfig = all_defaults()
    drift: DriftConfig = all_defaults()
    anomaly: AnomalyConfig = all_defaults()
    gate: GateConfig = all_defaults()
    labels: LabelsConfig = all_defaults()
    serving: ServingConfig = all_defaults()
    commands: CommandsConfig = all_defaults()
    discovery: DiscoveryConfig | None = None
    storage: StorageConfig = all_defaults()
    outbox: OutboxConfig = all_defaults()
    report: ReportConfig = all_defaults()
    weights: WeightsConfig = all_defaults()
    sparkplug: SparkplugConfig | None = None
    fleet: FleetConfig | None = None
    install: InstallConfig | None = None
    web: WebConfig | None = None
    log: LogConfig = all_defaults()

    @model_validator(mode="after")
    def _not_its_own_messages(self) -> Config:
        for name in self.stream.all_topics:
            first = name.split("/")[0]
            if first == "#" or name in (f"{self.mqtt.root}/#", f"{self.device_root}/#"):
                raise ValueError(
                    f"stream.topic {name!r} covers edged's own topics: name the sensors' own level"
                )
        return self

    @model_validator(mode="after")
    def _network_that_fits(self) -> Config:
        network = self.model.network
        if network is not None and self.stream.resolved_task == "reconstruct":
            raise ValueError(
                f"model.network {network}: a reconstruction always uses an autoencoder; remove it"
            )
        if network in ("cnn1d", "gru") and self.stream.window is None:
            raise ValueError(f"model.network {network} needs windows: add stream.window, or use mlp")
        return self

    @model_validator(mode="after")
    def _room_for_open_windows(self) -> Config:
        window = self.stream.window
        if window is not None:
            # A row of an open window takes 4 bytes for each number and some 100 for the rest.
            need = MAX_WINDOW_KEYS * window.size * (4 * self.stream.width + 100)
            if 4 * need > self.storage.max_bytes:
                raise ValueError(
                    f"open windows of {MAX_WINDOW_KEYS} keys can take {need:,} bytes, more than a quarter of"
                    " storage.max_bytes: raise it"
                )
        return self

    @model_validator(mode="after")
    def _labels_to_cover(self) -> Config:
        if self.serving.coverage is not None and self.stream.resolved_task == "reconstruct":
            raise ValueError("serving.coverage needs labels, and a reconstruction has none: remove it")
        return self

    @model_validator(mode="after")
    def _a_door_for_flower(self) -> Config:
        if self.fleet is not None and self.fleet.flower and (self.web is None or not self.web.unix_socket):
            raise ValueError("fleet.flower needs web.unix_socket: rounds arrive over it")
        return self

    @property
    def name(self) -> str:
        """Name of the stream; empty where the device has one without a name."""
        return self._name

    def named(self, name: str) -> Config:
        """Return this configuration as that of the stream `name`: with a directory and topics of its own."""
        storage = self.storage.model_copy(update={"dir": self.storage.dir / FOLDER / name})
        fleet = self.fleet if self.fleet is not None and self.fleet.stream == name else None
        own = self.model_copy(update={"storage": storage, "fleet": fleet})
        own.__pydantic_private__ = {"_name": name}
        return own

    @property
    def device_dir(self) -> Path:
        """The state directory of the device: that of the stream, or where those of all streams are."""
        return self.storage.dir.parent.parent if self._name else self.storage.dir

    @property
    def device_root(self) -> str:
        """`<root>/<device>`: what the topics of the device begin with."""
        return f"{self.mqtt.root}/{self.device.id}"

    @property
    def topic_root(self) -> str:
        """What the stream's topics begin with: `<root>/<device>`, or with a name `<root>/<device>/<name>`."""
        return f"{self.device_root}/{self._name}" if self._name else self.device_root

    @property
    def client_id(self) -> str:
        """Client id of the main connection; other connections of this device append a word to it."""
        return self.mqtt.client_id or f"edged-{self.device.id}"
