"""Events in parts: whatever the pieces are, whatever is cut or damaged, what is whole is read and the rest is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import RecordingError
from tracer.snapshot.remarks import Remarks
from tracer.trace.events import CUT, LEFT_OUT, TAIL_LEFT_OUT, EventReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["},{", "[{", '"}]', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.lists(st.dictionaries(st.sampled_from(["ph", "name", "args", "},{"]), VALUES, max_size=4), max_size=12)
HEADERS = st.dictionaries(st.sampled_from(["schemaVersion", "with_stack", "traceEvents "]), VALUES, max_size=2)


def read(pieces: list[str]) -> tuple[list[Any], dict[str, Any], list[str]]:
    remarks = Remarks()
    reader = EventReader(iter(pieces), remarks)
    events = [event for batch in reader.batches() for event in batch]
    return events, reader.header, remarks.sentences()


def pieces_of(text: str, length: int) -> list[str]:
    return [text[at : at + length] for at in range(0, len(text), length)]


@given(EVENTS, HEADERS, HEADERS, st.integers(1, 60), st.sampled_from([None, 1, 2]))
def test_all_events_are_read_however_the_text_is_cut(
    events: list[Any], before: dict[str, Any], after: dict[str, Any], length: int, indent: int | None
) -> None:
    text = json.dumps({**before, "traceEvents": events, **{f"{key}2": after[key] for key in after}}, indent=indent)
    found, header, remarks = read(pieces_of(text, length))
    assert (found, remarks) == (events, [])
    assert header == {**before, **{f"{key}2": after[key] for key in after}}


@given(EVENTS.filter(len), st.integers(1, 60))
def test_the_list_alone_is_a_trace(events: list[Any], length: int) -> None:
    assert read(pieces_of(json.dumps(events), length))[0] == events


@given(EVENTS.filter(len), st.integers(1, 40), st.data())
def test_of_a_file_that_ends_in_the_middle_what_was_whole_is_read(
    events: list[Any], length: int, data: st.DataObject
) -> None:
    text = json.dumps({"traceEvents": events})
    end = data.draw(st.integers(len('{"traceEvents": [{'), len(text) - 3))
    found, _, remarks = read(pieces_of(text[:end], length))
    assert found == events[: len(found)]
    assert len(found) >= len(events) - 1 or end < len(text) - 3
    if found != events:
        assert any(sentence.startswith(CUT) for sentence in remarks)


@pytest.mark.parametrize("length", [7, 1000])
def test_an_event_that_is_no_json_is_left_out_and_said(length: int) -> None:
    # torch does not escape quotes in some names.
    text = '{"traceEvents": [{"name": "a"}, {"name": "b "quoted" b", "ts": 1}, {"name": "c"}, {"name": "d"}]}'
    events, _, remarks = read(pieces_of(text, length))
    assert [event["name"] for event in events] == ["a", "c", "d"]
    assert len(remarks) == 1 and remarks[0].startswith(LEFT_OUT)


def test_line_ends_inside_names_are_read() -> None:
    assert read(['[{"name": "a\nb"}]'])[0] == [{"name": "a\nb"}]


def test_what_follows_the_events_and_is_damaged_is_said() -> None:
    events, _, remarks = read(['{"traceEvents": [{"name": "a"}], "traceName": oh}'])
    assert len(events) == 1 and remarks[0].startswith(TAIL_LEFT_OUT)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"a": ' * 100_000, "\x80\x02}q\x00.", '{"traceEvents": 3}', "<!doctype html>", "9" * 9999]
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="no trace"):
        read(pieces_of(text, 1 << 16))


@pytest.mark.parametrize("event", ['{"a": ' + "[" * 5000 + "]" * 5000 + "}", '{"ts": ' + "9" * 9000 + "}", '{"x" 1}'])
def test_hostile_events_cost_themselves_alone(event: str) -> None:
    events, _, remarks = read([f'[{{"name": "a"}},{event},{{"name": "b"}}, {{"name": "c"}}]'])
    assert [found.get("name") for found in events if "name" in found] == ["a", "b", "c"] and len(remarks) <= 1


def test_an_event_without_end_is_refused_and_not_waited_for() -> None:
    def endless() -> Any:
        yield '[{"name": "a"}, {"name": "'
        while True:
            yield "x" * (4 << 20)

    remarks = Remarks()
    with pytest.raises(RecordingError, match="larger"):
        list(EventReader(endless(), remarks).batches())
