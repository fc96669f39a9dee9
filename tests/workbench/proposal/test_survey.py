"""What topics carry: kinds, ranges, words and rates of their fields."""

from __future__ import annotations

import pytest

from edged.workbench.proposal.survey import BARE, LARGEST, MOST_FIELDS, MOST_TOPICS, Survey, Topic, merged
from tests.sensor_payloads import NEURON, PUMP, SHELLY


def topic_of(*payloads: bytes) -> Topic:
    topic = Topic("t")
    for second, payload in enumerate(payloads):
        topic.add(payload, float(second))
    return topic


def test_kinds_of_the_fields_of_a_message() -> None:
    fields = topic_of(PUMP).fields
    assert {path: field.kind for path, field in fields.items()} == {
        "temperature": "number", "humidity": "number", "vibration": "on/off", "contact": "on/off",
        "battery": "number", "linkquality": "number", "state": "on/off", "action": "nothing",
        "last_seen": "time", "update.state": "word",
    }  # fmt: skip
    assert topic_of(SHELLY).fields["temperature.tC"].high == 27.7
    assert topic_of(NEURON).fields["values.tag1"].kind == "number"


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"21.30", "number"), (b"-1e3", "number"), (b'"21.3"', "number"), (b"true", "on/off"),
        (b"OFF", "on/off"),
        (b"open", "on/off"), (b"unavailable", "nothing"), (b"nan", "nothing"), (b"NaN", "nothing"),
        (b"null", "nothing"), (b"", "nothing"), (b"heating", "word"), (b"2026-11-22T10:00:00Z", "time"),
        (b"a sentence that is too long to be a word of anything", "text"),
    ],
)  # fmt: skip
def test_a_bare_payload_is_the_value(payload: bytes, kind: str) -> None:
    topic = topic_of(payload)
    assert (topic.bare, topic.fields[BARE].kind) == (True, kind)


def test_payloads_that_nobody_can_read_are_counted_alone() -> None:
    topic = topic_of(b"\xff\xfe", b'{"a":', b"[1,2]", b'{"a":' * 5000, b" " * (LARGEST + 1))
    assert (topic.unread, topic.fields) == (5, {})


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        (b'{"name":"a","v":1},{"name":"b","v":2}', ["t[name=a].v", "t[name=b].v"]),
        (b'{"name":"a","v":1},{"name":"a","v":2}', ["t.0.name", "t.0.v", "t.1.name", "t.1.v"]),
        (b'{"name":"a]","v":1}', ["t.0.name", "t.0.v"]),
        (b'{"v":1},{"name":"b"}', ["t.0.v", "t.1.name"]),
    ],
)
def test_objects_of_an_array_go_by_their_names(values: bytes, paths: list[str]) -> None:
    assert list(topic_of(b'{"t":[' + values + b"]}").fields) == paths


def test_ranges_words_and_what_is_missing() -> None:
    rows = (20, b"a", b"1"), (23, b"b", b"null"), (21, b"a", b"2"), (22, b"b", b'"nan"')
    topic = topic_of(*(b'{"t":%d,"m":"%s","h":%s}' % row for row in rows))
    found = topic.fields
    assert (found["t"].shown, found["m"].shown, found["m"].kind) == ("20 to 23", "a, b", "word")
    assert (found["h"].seen, found["h"].missing, topic.whole("t"), topic.whole("h")) == (4, 2, True, False)


def test_words_that_hardly_repeat_are_text() -> None:
    assert topic_of(*(b'{"id":"n%d"}' % i for i in range(10))).fields["id"].kind == "text"
    assert topic_of(*(b'{"id":"n%d"}' % (i % 3) for i in range(10))).fields["id"].kind == "word"


def test_a_counter_is_told_from_a_measurement() -> None:
    counter = topic_of(*(b'{"n":%d}' % i for i in range(20))).fields["n"]
    rising = topic_of(*(b'{"n":%f}' % (20 + i / 7) for i in range(20))).fields["n"]
    up_and_down = topic_of(*(b'{"n":%d}' % (i % 7) for i in range(20))).fields["n"]
    assert (counter.counts_up, rising.counts_up, up_and_down.counts_up) == (True, False, False)


def test_rates_are_of_live_messages_alone() -> None:
    topic = Topic("t")
    topic.add(b"1", 0.0, retained=True)
    assert (topic.live, topic.interval) == (0, None)
    for second in (5.0, 7.0, 9.0):
        topic.add(b"1", second)
    assert (topic.live, topic.interval, topic.repeats) == (3, 2.0, 3)
    assert topic_of(b"1").interval is None


def test_the_same_field_of_alike_topics_together() -> None:
    one, other = topic_of(b'{"s":"ok","t":1}').fields, topic_of(b'{"s":"worn","t":5.5}').fields
    words, range_ = (merged([one[name], other[name]]) for name in ("s", "t"))
    assert (sorted(words.words), words.seen, words.kind) == (["ok", "worn"], 2, "word")
    assert (range_.shown, range_.whole) == ("1 to 5.5", False)


def test_a_survey_is_bounded() -> None:
    survey = Survey()
    for i in range(MOST_TOPICS + 5):
        survey.add(f"t/{i}", b"1")
    assert (len(survey.topics), survey.messages) == (MOST_TOPICS, MOST_TOPICS + 5)
    wide = topic_of(b"{" + b",".join(b'"f%d":1' % i for i in range(MOST_FIELDS + 5)) + b"}")
    assert len(wide.fields) == MOST_FIELDS
