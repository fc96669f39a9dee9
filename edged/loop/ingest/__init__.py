"""Ingest: deliveries -> samples -> one commit -> acknowledgement; labels -> the samples they are for."""

from edged.loop.ingest.thread import Ingest

__all__ = ["Ingest"]
