"""Ingest: deliveries -> samples -> one commit -> acknowledgement; labels -> the samples they are for."""

from edged.device.ingest.ingestor import Ingestor

__all__ = ["Ingestor"]
