"""Recordings through columns: equal on workloads of each kind, and every index is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from tests.exporters.recording_file.samples import kept_on_cuda
from tests.training_steps import ONE_OF_EACH, Recorded
from tracer.capture.objects.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.errors import RecordingError
from tracer.exporters.recording_file.checked_columns import Columns, text_columns
from tracer.exporters.recording_file.recording_columns import (
    INDEXES,
    KEY_LISTS,
    TABLES,
    known_columns,
    known_from,
    recording_columns,
    recording_from,
)


def assert_equal(one: Any, other: Any) -> None:
    """Field by field, columns by type and content."""
    assert type(one) is type(other)
    for each in fields(one):
        ours, theirs = getattr(one, each.name), getattr(other, each.name)
        if is_dataclass(ours):
            assert_equal(ours, theirs)
        elif isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes()), each.name
        else:
            assert ours == theirs, each.name


def again(recording: Recording) -> Recording:
    columns = recording_columns(recording, "cycle0")
    return recording_from(Columns(columns), "cycle0", num_events=recording.num_events)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_recording_comes_back_equal(name: str, recorded: Callable[[str], Recorded]) -> None:
    for recording in recorded(name).recordings:
        assert_equal(again(recording), recording)


def test_kernels_and_observations_come_back_equal() -> None:
    kept = kept_on_cuda()
    assert kept.cycles[0].recording.kernels is not None
    assert_equal(again(kept.cycles[0].recording), kept.cycles[0].recording)
    assert len(kept.known.time_ns) > 10
    assert_equal(known_from(Columns(known_columns(kept.known))), kept.known)


def test_every_field_has_its_columns() -> None:
    """A table, or a field of one, that comes later is not forgotten."""
    assert {one.name for one in fields(Recording)} == {
        *TABLES, *KEY_LISTS, "strings", "devices", "shapes", "num_events"
    }  # fmt: skip
    names = set(recording_columns(kept_on_cuda().cycles[0].recording, "c"))
    assert {f"c.{table}.{one.name}" for table, kind in TABLES.items() for one in fields(kind)} <= names
    assert {f"c.{name}" for name in INDEXES} <= names
    texts = {"names", "devices", "threads", "lines"}
    known = {f"known.{one.name}" + ".utf8" * (one.name in texts) for one in fields(KnownStorages)}
    assert known <= set(known_columns(kept_on_cuda().known))


def changed(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    columns = recording_columns(kept_on_cuda().cycles[0].recording, "c")
    column = columns[f"c.{name}"].copy()
    result = change(column)
    return columns | {f"c.{name}": column if result is None else result}


def refused(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecordingError, match=complaint) as caught:
        recording_from(Columns(columns), "c", num_events=5)
    assert caught.value.hint


def put(value: int) -> Callable[[Any], None]:
    def change(column: Any) -> None:
        column[len(column) // 2] = value

    return change


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("value", [-2, 10**6, 2**63 - 1])
def test_an_index_outside_its_table_is_refused(name: str, value: int) -> None:
    refused(changed(name, put(value)), f"c.{name} has values outside")


@pytest.mark.parametrize("name", [name for name in INDEXES if not INDEXES[name].can_lack])
def test_an_index_that_has_to_be_there_is_refused_without(name: str) -> None:
    refused(changed(name, put(-1)), f"c.{name} has values outside 0")


@pytest.mark.parametrize("name", [name for name in INDEXES if INDEXES[name].is_before])
def test_what_encloses_itself_is_refused(name: str) -> None:
    def enclose(column: Any) -> None:
        column[7] = 7

    refused(changed(name, enclose), "enclose themselves")


COLUMN_NAMES = [f"{table}.{one.name}" for table, kind in TABLES.items() for one in fields(kind)]


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_a_column_of_another_length_or_type_or_none_is_refused(name: str) -> None:
    refused(changed(name, lambda column: column[:-1]), "rows, not|outside")
    refused(changed(name, lambda column: column.astype(np.float64)), "holds float64")
    columns = changed(name, lambda column: None)
    if name != "kernels.launched_ns":  # without it there are no kernels
        refused({key: column for key, column in columns.items() if key != f"c.{name}"}, f"no column c.{name}")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("ops.kind", 3, "outside 0 to 2"),
        ("calls.kind", -1, "outside 0 to 3"),
        ("allocations.time_ns", -5, "outside"),
        ("allocations.size_bytes", 1 << 60, "outside"),
        ("allocations.total_allocated_bytes", -(1 << 60), "outside"),
        ("keys.size_bytes", -1, "outside"),
        ("shapes.shape_ends", 10**6, "outside"),
        ("shapes.set_ends", 0, "does not divide"),
        ("strings.ends", 1, "does not divide"),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: int, complaint: str) -> None:
    refused(changed(name, put(value)), complaint)


def test_sizes_that_cannot_be_summed_are_refused() -> None:
    """Each may be, all together are more than 64 bits hold."""
    columns = {"big": np.full(1 << 13, 1 << 50)}
    with pytest.raises(RecordingError, match="more bytes than there are"):
        Columns(columns).bytes_column("big")
    assert len(Columns({"big": np.full(1 << 11, 1 << 50)}).bytes_column("big")) == 1 << 11


def test_a_number_that_is_allocated_twice_is_refused() -> None:
    def same(column: Any) -> None:
        column[:] = 5

    refused(changed("allocations.allocation_id", same), "the same number")


@pytest.mark.parametrize("name", ["flow.node_time_ns", "flow.edge_node", "flow.edge_key"])
def test_a_data_flow_in_another_order_is_refused(name: str) -> None:
    def swap(column: Any) -> None:
        column[:] = column[::-1].copy()

    refused(changed(name, swap), "not in order")


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_texts_come_back_without_what_a_terminal_obeys() -> None:
    texts = ("", "für", "\ud800", "a\x1b[31mb", "end")
    columns = Columns(text_columns("t", texts))
    assert columns.texts("t", as_is=True) == texts
    assert columns.texts("t") == ("", "für", "\\ud800", "a\\x1b[31mb", "end")
    assert Columns(text_columns("t", ())).texts("t") == ()


def test_bytes_that_are_no_text_are_refused() -> None:
    columns = text_columns("t", ["ü", "b"])
    columns["t.ends"] = np.array([1, 3])  # in the middle of a letter
    with pytest.raises(RecordingError, match="no text"):
        Columns(columns).texts("t")
