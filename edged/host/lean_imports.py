"""What keeps the daemon and its trainer small and their starts short; imported before everything else."""

from edged.host import heap
from edged.lazy_imports import hash_without_openssl, lazily

heap.postpone_full_collections()
hash_without_openssl()
lazily("importlib.metadata", "entry_points")  # pydantic's plugins
lazily("bz2")  # shutil and zipfile ask whether it is there, and for lzma
lazily("lzma")
