"""Whose model a command is about: the stream's, or that of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.device.pipeline import Pipeline
    from edged.domain.commands.rules import Request


@contextmanager
def addressed(pipeline: LivePipeline, request: Request) -> Iterator[Pipeline]:
    """The pipeline that a request is about: that of its `key`, or the stream's.

    Raises RefusedError when the key has no model of its own; EdgedError when that cannot be loaded.
    """
    key = request.get("key")
    if key is None:
        yield pipeline
        return
    if pipeline.keys is None:
        raise RefusedError("keys have no models of their own here", where="key", remedy="set model.per: key")
    with pipeline.keys.pipelines.held(key) as own:
        yield own
