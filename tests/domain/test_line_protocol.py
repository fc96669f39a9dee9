"""Line protocol: what the reference shows, escapes, and any text at all."""

from __future__ import annotations

from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.line_protocol import Record, parse
from edged.errors import RejectedSampleError


def test_values_have_their_kinds() -> None:
    line = (
        r"cpu,host=a\ b,site=x\,y\=z idle=98.1,procs=120i,free=7u,ok=t,up=False,e=-1e3,"
        r's="a \"b\", \\ c=1 \n" 1650006388500000000'
    )
    assert parse(line) == [
        Record(
            name="cpu",
            tags={"host": "a b", "site": "x,y=z"},
            fields={
                "idle": 98.1,
                "procs": 120,
                "free": 7,
                "ok": True,
                "up": False,
                "e": -1000.0,
                "s": r'a "b", \ c=1 \n',
            },
            timestamp=1650006388.5,
        )
    ]


def test_comments_empty_lines_and_lines_without_a_time() -> None:
    records = parse("# made by telegraf\n\nm v=1\r\nwith\\,comma=1 v=2  \n")
    assert [(record["name"], record["fields"], record["timestamp"]) for record in records] == [
        ("m", {"v": 1.0}, None),
        ("with,comma=1", {"v": 2.0}, None),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("m", "a tag as name=value, or a space was expected at column 2, not the end"),
        ("m,host v=1", "a tag as name=value"),
        ("m,host= v=1", "a tag as name=value"),
        ("m v", "a field as name=value was expected at column 3"),
        ("m v=1,", "a field as name=value"),
        ('m v="open', "a field as name=value"),
        ("m v=1 yesterday", "the time in nanoseconds was expected at column 6"),
        ("m v=nan", "value 'nan' is no number"),
        ("m v=1_000", "value '1_000' is no number"),
        ("m v=-3u", "value '-3u' is no number"),
        (",host=a v=1", "a measurement"),
    ],
)
def test_a_malformed_line_is_named(line: str, says: str) -> None:
    with pytest.raises(RejectedSampleError) as caught:
        parse(f"m v=1\n{line}")
    assert caught.value.reason == "not_line_protocol"
    assert says in str(caught.value)
    assert str(caught.value).startswith("line 2: ")


NAMES = st.text(
    st.characters(exclude_characters="\\\n\r\t#", exclude_categories=["Cs", "Cc"]), min_size=1
).filter(lambda text: text == text.strip())


@given(
    NAMES, st.dictionaries(NAMES, NAMES), st.dictionaries(NAMES, st.floats(-1e30, 1e30) | NAMES, min_size=1)
)
def test_what_was_written_is_read(name: str, tags: dict[str, str], fields: dict[str, float | str]) -> None:
    def key(text: str) -> str:
        return text.replace(",", "\\,").replace("=", "\\=").replace(" ", "\\ ")

    def value(given: float | str) -> str:
        return repr(given) if isinstance(given, float) else '"' + given.replace('"', '\\"') + '"'

    head = name.replace(",", "\\,").replace(" ", "\\ ")
    tag_set = "".join(f",{key(tag)}={key(text)}" for tag, text in tags.items())
    field_set = ",".join(f"{key(field)}={value(given)}" for field, given in fields.items())
    assert parse(f"{head}{tag_set} {field_set} -5000000000") == [
        Record(name=name, tags=tags, fields=fields, timestamp=-5.0)
    ]


@given(st.text(st.sampled_from('m,= "\\\n1.5iut-e#'), max_size=60))
def test_any_text_gives_records_or_the_one_error(text: str) -> None:
    try:
        records = parse(text)
    except RejectedSampleError:
        return
    for record in records:
        assert record["name"]
        assert record["fields"]
        assert not any(isnan(v) for v in record["fields"].values() if isinstance(v, float))
