"""What keeps the daemon and its trainer small and their starts short; imported before everything else."""

from edged.lazy_imports import lazily

lazily("importlib.metadata", "entry_points")  # pydantic's plugins
lazily("bz2")  # shutil and zipfile ask whether it is there, and for lzma
lazily("lzma")
