"""Sections `storage` and `outbox`: what is kept on this disk, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from edged.config.values import Duration, FilePath, Section, Size


class StorageConfig(Section):
    """What is stored on this disk, and how much of it."""

    dir: FilePath = Field(Path("./state"), description="state directory")
    max_bytes: Size = Field(512 * 1024**2, ge=1024**2, description="cap of the sample log")
    max_age: Duration | None = Field(None, description="samples older than this are evicted", gt=0)
    durability: Literal["full", "relaxed"] = Field(
        "full",
        description="full: what is acknowledged is on the disk; relaxed: it survives the end of the process,"
        " and a power cut takes what the system had not written yet, half a minute or so",
    )
    commit_rows: int = Field(1000, ge=1, description="messages in one group commit at most")
    commit_delay: Duration = Field(
        5.0,
        ge=0,
        le=60,
        description="how long a commit waits for company, while more messages are to be expected: flash is"
        " written by the page, however little is in it (docs/operating.md); they are predicted meanwhile, and"
        " acknowledged after it",
    )
    quarantine_rows: int = Field(1000, ge=1, description="rejected messages that are kept")
    secure: bool = Field(
        False, description="overwrite what is deleted, and let the replay memory age with max_age, too"
    )
    keep_models: int = Field(10, ge=2, description="models kept in the registry")


class OutboxConfig(Section):
    """What waits on the disk while the broker is away, and is sent when it is back."""

    enabled: bool = Field(
        True,
        description="keep events, metrics, weights and must-deliver predictions until the broker has them",
    )
    max_bytes: Size = Field(
        64 * 1024**2,
        ge=1024**2,
        description="cap of its files; a message may have a 16th of it, and 1MiB, at most",
    )
    max_age: Duration = Field(7 * 86400.0, gt=0, description="messages that waited longer are discarded")
    rate: float = Field(
        50.0, gt=0, le=100_000, description="messages a second that are sent late, so that live ones go first"
    )
