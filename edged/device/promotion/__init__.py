"""Promotion: candidate -> gate -> registry -> champion, and the way back: what is durable."""

from edged.device.promotion.model_loader import BOOT_TRIES, LOADING
from edged.device.promotion.promoter import Promoter

__all__ = ["BOOT_TRIES", "LOADING", "Promoter"]
