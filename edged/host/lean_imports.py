"""What a daemon keeps out of its memory for good; imported before everything else in its process."""

from edged.lazy_imports import hash_without_openssl, lazily

hash_without_openssl()
lazily("importlib.metadata", "entry_points")  # pydantic's plugins
