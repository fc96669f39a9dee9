"""Where the training build of onnxruntime does not exist, there is nothing to lower."""

from __future__ import annotations

from edged.engines.native import api

collect_ignore_glob = [] if api.available() else ["test_*.py"]
