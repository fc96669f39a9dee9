"""Ingest: deliveries -> samples -> one commit -> acknowledgement; labels -> the samples they are for."""

from edged.device.ingest.committer import GroupCommitter
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.ingestor import Ingestor
from edged.device.ingest.joiner import Joiner
from edged.device.ingest.notices import IngestNotices

__all__ = ["GroupCommitter", "IngestNotices", "Ingestor", "Joiner", "SampleDecoder"]
