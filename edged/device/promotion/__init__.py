"""Promotion: candidate -> gate -> registry -> champion, and the way back: what is durable."""

from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import BOOT_TRIES, LOADING, ModelStore
from edged.device.promotion.rollout import Rollout

__all__ = ["BOOT_TRIES", "LOADING", "CandidateEvaluator", "ModelStore", "Rollout"]
