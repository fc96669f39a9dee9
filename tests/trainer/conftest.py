"""The bundle of the tests of devices."""

from __future__ import annotations

from tests.device.conftest import bundle, bundles

__all__ = ["bundle", "bundles"]
