"""Recorded data in files: npz, CSV, Parquet, JSON lines, line protocol, Home Assistant's recorder."""

from edged.storage.recordings.formats import FORMATS, format_of, open_source, readable
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.history import FileReader, read_recording
from edged.storage.recordings.reading import read_stream
from edged.storage.recordings.recording import Recording
from edged.storage.recordings.rows import LeftOut, RowBlock, Wanted, find_roles, row_blocks

__all__ = [
    "FORMATS", "FileReader", "Frame", "LeftOut", "Recording", "RowBlock", "Wanted", "find_roles", "format_of",
    "open_source", "read_recording", "read_stream", "readable", "row_blocks",
]  # fmt: skip
