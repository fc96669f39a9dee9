"""The command line: one file a group of commands, and what they print."""

from edged.lazy_imports import lazily

# It reads rich: 50 ms and 1 MB that `edged run` has no use for.
lazily("edged.cli.output")
