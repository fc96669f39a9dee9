"""All schemas as files: one for each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.messages.answers import ANSWERS, answer_to
from edged.domain.messages.published import PUBLISHED, event
from edged.domain.messages.requests import REQUESTS, whole

if TYPE_CHECKING:
    from edged.domain.messages.schema_helpers import Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, Schema]:
    """By topic below `<root>/<device>/`: `status`, `request/train`, `response/train`, ...

    >>> schemas()["request/ping"]["title"]
    'request/ping'
    """
    found = dict(PUBLISHED) | {"events": event()}
    found |= {f"request/{name}": whole(name) for name in REQUESTS}
    found |= {f"response/{name}": answer_to(name) for name in ANSWERS}
    return {name: {"$schema": DIALECT, "title": name} | schema for name, schema in sorted(found.items())}
