"""Each signed transaction is good once: whatever the clock does, and with a bounded memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.commands.signatures import (
    REMEMBERED,
    SPENT,
    UsedTransactions,
    with_signature,
    without_signature,
)

WINDOW = 300.0


class Store:
    """Values as JSON, as the registry keeps them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get_value(self, name: str, default: Any = None) -> Any:
        return json.loads(self.values[name]) if name in self.values else default

    def set_value(self, name: str, value: Any) -> None:
        self.values[name] = json.dumps(value)


class FullStore(Store):
    """A store on a full disk."""

    def set_value(self, name: str, value: Any) -> None:
        raise OSError(name, value)


def test_the_signature_goes_into_the_last_empty_field() -> None:
    payload = b'{"inner":{"signature":""},"signature":""}'
    signed = with_signature(payload, b"\x01" * 64)
    fields = json.loads(signed)
    assert fields["inner"]["signature"] == ""
    assert without_signature(signed, fields["signature"]) == (payload, b"\x01" * 64)


@pytest.mark.parametrize("text", ["AAB=", "AAA", "AA==\n", "AA==AA==", "ÄÄÄÄ", "A A="])
def test_one_form_of_base64_alone_is_taken(text: str) -> None:
    assert without_signature(b'"%b"' % text.encode(), text) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.floats(0, 5000), st.floats(-1, 1), st.booleans()), max_size=40
    )
)
def test_no_transaction_is_taken_twice(steps: list[tuple[str, float, float, bool]]) -> None:
    """The clock jumps about, and the device restarts at any time with what it had kept."""
    store = Store()
    spent = UsedTransactions(store)
    taken: set[tuple[str, float]] = set()
    for transaction, now, off, restart in steps:
        if restart:
            spent = UsedTransactions(store)
        signed = (transaction, round(now + off * WINDOW, 3))
        if spent.accept(*signed, now):
            assert signed not in taken
            taken.add(signed)
        for old in taken:  # a replay of anything, whatever the clock says
            assert not spent.accept(*old, now)


def test_the_memory_is_bounded_and_what_it_forgets_is_refused() -> None:
    store = Store()
    spent = UsedTransactions(store)
    for number in range(REMEMBERED + 10):
        assert spent.accept(str(number), 1000.0 + number / 100, 1000.0)
    assert len(store.get_value(SPENT)["taken"]) == REMEMBERED
    assert not spent.accept("0", 1000.0, 1000.0)
    assert not spent.accept("another", 1000.05, 1000.0)
    assert spent.accept("another", 1011.0, 1000.0)


def test_what_could_not_be_kept_was_not_taken() -> None:
    spent = UsedTransactions(FullStore())
    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011  ours, from above
            spent.accept("t", 1.0, 1.0)
