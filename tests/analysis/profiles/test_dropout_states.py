"""Bytes that a recurrent layer was given are cuDNN's random state; tests/truth has a program with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.histories import START_NS, Key, recording_of
from tracer.analysis.profiles.dropout_states import dropout_states
from tracer.capture.recording import DataFlow, Ops, Recording


def given_to(operator: str, dtypes: list[str], *, allocated: bool = False) -> Recording:
    """A recording of one operator that is given a storage of each type."""
    keys = [Key(100 * number, 8, number) for number in range(len(dtypes))]
    recording = recording_of([], keys)
    names = list(Ops.__dataclass_fields__)
    row = dict.fromkeys(names, -1) | {"name": 0, "kind": 0, "start_ns": START_NS - 5, "end_ns": START_NS + 5}
    none = np.zeros(len(keys), bool)
    return replace(
        recording,
        strings=(operator, *dtypes),
        ops=Ops(*(np.array([row[name]]) for name in names)),
        keys=replace(recording.keys, dtype=np.arange(1, len(keys) + 1)),
        flow=DataFlow(
            np.array([START_NS]), np.array([False]), np.zeros(len(keys), np.int64), np.arange(len(keys)),
            none | allocated, none, none,
        ),
    )  # fmt: skip


def test_bytes_that_a_recurrent_layer_is_given_are_its_dropouts_state() -> None:
    assert dropout_states(given_to("aten::lstm", ["float32", "uint8", "float32"])).tolist() == [False, True, False]
    assert dropout_states(given_to("aten::gru", ["uint8"])).tolist() == [True]


def test_what_the_layer_makes_and_bytes_of_others_are_none() -> None:
    assert dropout_states(given_to("aten::lstm", ["uint8"], allocated=True)).tolist() == [False]
    assert dropout_states(given_to("aten::embedding", ["uint8"])).tolist() == [False]
    assert dropout_states(recording_of([], [Key(100, 8, 1)])).tolist() == [False]
