"""Recorded data in files: npz, CSV, Parquet, JSON lines, line protocol, Home Assistant's recorder."""

from edged.storage.recordings.frame import Frame
from edged.storage.recordings.reader import FORMATS, format_of, open_source, read_stream, readable
from edged.storage.recordings.rows import LeftOut, Recording, RowBlock, Wanted, find_roles, row_blocks
from edged.storage.recordings.samples import FileReader, cut_windows, read_recording

__all__ = [
    "FORMATS", "FileReader", "Frame", "LeftOut", "Recording", "RowBlock", "Wanted", "cut_windows",
    "find_roles", "format_of", "open_source", "read_recording", "read_stream", "readable", "row_blocks",
]  # fmt: skip
