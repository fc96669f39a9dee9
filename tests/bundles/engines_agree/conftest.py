"""Both engines side by side: only where the training build of onnxruntime is installed."""

from __future__ import annotations

from edged.engines.native import api

collect_ignore_glob = [] if api.available() else ["test_*.py"]
