"""The bundle of the tests of devices; without the training build these tests are not collected."""

from __future__ import annotations

from tests.device.conftest import bundle

__all__ = ["bundle"]
