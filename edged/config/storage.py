"""Sections `storage` and `outbox`: what is kept on this disk, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from edged.config.values import Duration, FilePath, Section, Size


class StorageConfig(Section):
    """What edged stores on disk, and how much."""

    dir: FilePath = Field(Path("./state"), description="state directory")
    max_bytes: Size = Field(512 * 1024**2, ge=1024**2, description="maximum size of the sample log")
    max_age: Duration | None = Field(None, description="samples older than this are evicted", gt=0)
    durability: Literal["full", "relaxed"] = Field(
        "full",
        description="full: acknowledged samples are on the disk; relaxed: they survive the end of the"
        " process, but a power cut can lose those of the last half minute or so",
    )
    commit_rows: int = Field(1000, ge=1, description="maximum messages in one commit")
    commit_delay: Duration = Field(
        5.0,
        ge=0,
        le=60,
        description="how long a commit waits for more messages, to save flash pages (docs/operating.md);"
        " edged predicts at once and acknowledges after the commit",
    )
    quarantine_rows: int = Field(1000, ge=1, description="maximum number of rejected messages kept")
    secure: bool = Field(
        False, description="overwrite deleted data, and apply max_age to the replay memory, too"
    )
    keep_models: int = Field(10, ge=2, description="number of models kept in the registry")


class OutboxConfig(Section):
    """Messages that wait on disk while the broker is away."""

    enabled: bool = Field(
        True,
        description="store events, metrics, weights and must-deliver predictions until the broker has them",
    )
    max_bytes: Size = Field(
        64 * 1024**2,
        ge=1024**2,
        description="maximum size of its files; one message has at most a 16th of it and at most 1MiB",
    )
    max_age: Duration = Field(7 * 86400.0, gt=0, description="messages that have waited longer are discarded")
    rate: float = Field(
        50.0, gt=0, le=100_000, description="maximum delayed messages per second, so that live ones go first"
    )
