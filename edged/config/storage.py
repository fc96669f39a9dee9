"""Sections `storage` and `outbox`: what is kept on this disk, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PrivateAttr

from edged.config.values import AnyPath, Constants, Duration, Section, Size


@dataclass(frozen=True)
class StorageConstants:
    """Values of `StorageConfig` without a key."""

    commit_rows: int = 1000  # messages in one commit
    quarantine_rows: int = 1000  # rejected messages kept
    keep_models: int = 10  # in the registry, beside pinned ones


class StorageConfig(Section, Constants[StorageConstants]):
    """What edged stores on disk, and how much."""

    _constants: StorageConstants = PrivateAttr(StorageConstants())
    dir: AnyPath = Field(Path("./state"), description="state directory")
    max_bytes: Size = Field(512 * 1024**2, ge=1024**2, description="maximum size of the sample log")
    max_age: Duration | None = Field(None, description="samples older than this are evicted", gt=0)
    commit_delay: Duration = Field(
        5.0,
        ge=0,
        le=60,
        description="how long a commit waits for more messages, to save flash pages (docs/operating.md);"
        " edged predicts at once and acknowledges after the commit",
    )
    secure: bool = Field(
        False, description="leave no deleted data in the files, and apply max_age to the replay memory, too"
    )


@dataclass(frozen=True)
class OutboxConstants:
    """Values of `OutboxConfig` without a key."""

    max_age: float = 7 * 86400.0  # seconds; messages that have waited longer are discarded
    rate: float = 50.0  # delayed messages per second, so that live ones go first


class OutboxConfig(Section, Constants[OutboxConstants]):
    """Messages that wait on disk for the broker: events, metrics, weights and must-deliver predictions."""

    _constants: OutboxConstants = PrivateAttr(OutboxConstants())
    max_bytes: Size = Field(
        64 * 1024**2,
        ge=1024**2,
        description="maximum size of its files; one message has at most a 16th of it and at most 1MiB",
    )
