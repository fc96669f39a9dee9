"""The bundle of the tests of devices; without the training build these tests are not collected."""

from __future__ import annotations

from edged.engines.native import api
from tests.device.conftest import bundle

__all__ = ["bundle"]

collect_ignore_glob = [] if api.available() else ["test_*.py"]
