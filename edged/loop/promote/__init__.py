"""Promotion: candidate -> gate -> registry -> champion, and the way back: what is durable."""

from edged.loop.promote.models import BOOT_TRIES, LOADING
from edged.loop.promote.promoter import Promoter

__all__ = ["BOOT_TRIES", "LOADING", "Promoter"]
