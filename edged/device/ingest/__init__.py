"""Ingest: deliveries -> samples -> one commit -> acknowledgement; labels -> the samples they are for."""

from edged.device.ingest.ingestor import Ingest

__all__ = ["Ingest"]
