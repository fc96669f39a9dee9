"""Where the training build of onnxruntime does not exist, there is nothing to lower."""

from __future__ import annotations

from edged.engines import training_api

collect_ignore_glob = [] if training_api.available() else ["test_*.py"]
