"""The tables of docs/operators.md say what the rules and the zoo say."""

from __future__ import annotations

from tests.commands import generated_page_is_current


def test_the_tables_are_up_to_date() -> None:
    assert generated_page_is_current("make_operator_table.py")
