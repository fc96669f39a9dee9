"""The configuration that `edged init` writes: YAML with a comment on each line that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from edged.domain.nearest import one_of

if TYPE_CHECKING:
    from edged.workbench.proposal.draft import Draft, DraftLine

COMMENT_AT = 34  # column of the comments, further right only behind a longer line


def document(draft: Draft, mqtt: Mapping[str, Any], source: str) -> str:
    """The text of the file; `mqtt` is its section of that name, `source` says what it was made from."""
    lines = [
        f"# Written by `edged init` from {_plain(source)}.",
        "# All keys and their meaning: docs/config.md, or `edged config schema`.",
        "",
        "device:",
        _line(
            2,
            "id",
            draft.device,
            f"part of every topic, such as edged/{draft.device}/predictions",
        ),
        "",
        "mqtt:",
        *(_line(2, key, value, _WHY_MQTT.get(key, "")) for key, value in mqtt.items()),
        "",
        "stream:",
        *_entries(draft.before_features()),
        *_features(draft),
        *_entries(draft.after_features()),
        "",
        "storage:",
        _line(2, "dir", "./state", "samples, labels and models, beside this file"),
    ]
    return "\n".join(lines) + "\n"


_WHY_MQTT = {
    "host": "the broker",
    "port": "1883 without TLS, usually 8883 with it",
    "websocket": "MQTT over a WebSocket",
    "username": "user name at the broker",
    "password_file": "file with the password in its first line",
    "tls": "encrypted; the system's CA certificates are trusted",
    "insecure": "without TLS: others on the network can read and change messages",
}


def _features(draft: Draft) -> list[str]:
    array = draft.array
    if array is not None:
        return [_line(2, "features", array.field.width, "numbers in the field `x`")]
    items = [_line(4, "-", entry.value, entry.why) for entry in draft.feature_entries()]
    reasons: dict[str, list[str]] = {}
    for one in draft.left_out:
        reasons.setdefault(one.why or "not wanted", []).append(one.name)
    left_out = [f"    # left out ({why}): {_plain(one_of(names))}" for why, names in reasons.items()]
    return ["  features:", *items, *left_out]


def _entries(entries: Sequence[DraftLine]) -> list[str]:
    return [_line(2, *entry) for entry in entries]


def _line(indent: int, key: str, value: Any, why: str) -> str:
    colon = "" if key == "-" else ":"
    text = f"{' ' * indent}{key}{colon} {inline(value)}"
    return f"{text:<{COMMENT_AT - 2}}  # {_plain(why)}" if why else text


def inline(value: Any) -> str:
    """A value in YAML on one line.

    >>> inline({"fill": "last", "flags": True}), inline(["on", "ok"])
    ('{fill: last, flags: true}', "['on', ok]")
    """
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...").strip()


def _plain(text: str) -> str:
    """Text that is safe in a comment: one line, printable."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
