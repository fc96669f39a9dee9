"""Keys of the configuration that `config.set` may change: none that could lock a device out or lose data."""

from __future__ import annotations

SETTABLE: dict[str, tuple[str, ...]] = {
    "training": (
        "enabled", "every", "cron", "min_new_samples", "new_labels", "scarce_labels", "cooldown", "steps",
        "steps_per", "max_steps", "learning_rate", "schedule", "warmup", "new_share", "recent_share",
        "key_share", "checkpoint_every", "retry_after", "max_failures", "quiet", "max_temperature",
        "mains_only", "min_battery", "max_load", "max_runs_per_day", "max_minutes_per_day",
    ),
    "gate": (
        "recent", "min_holdout", "min_gain", "significance", "max_regret", "recall", "suspect_labels",
        "probation", "probation_drop", "probation_time",
    ),
    "labels": ("request_share", "request_random", "requests_per_day"),
    "drift": ("train",),
    "report": ("every",),
    "log": ("level",),
}  # fmt: skip


def settable() -> list[str]:
    """All of them, as `section.key`."""
    return [f"{section}.{key}" for section, keys in SETTABLE.items() for key in keys]
