"""Recurrent layers take what cuDNN 9.19 said on an H100, asked by `cudnnGetRNNTempSpaceSizes`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracer.rehearsal.recurrent_sizes import Batch, Layers

# Kind, layers, directions, input, hidden, steps, samples, steps of all, packed, dropout, bytes of a value; then the
# workspaces of training and of inference, and the reserve.
ANSWERS = [
    ("rnn_tanh", 3, 1, 256, 128, 500, 4, 2000, False, True, 4, 33978656, 30263584, 5184256),
    ("rnn_tanh", 4, 1, 13, 512, 35, 20, 700, False, False, 4, 47097376, 44316640, 10035456),
    ("rnn_tanh", 2, 1, 512, 100, 10, 64, 640, True, False, 4, 18720192, 17409472, 768256),
    ("rnn_tanh", 4, 2, 13, 1024, 128, 128, 16384, False, False, 4, 987473152, 709797120, 939524352),
    ("rnn_tanh", 4, 2, 1, 100, 35, 80, 2800, True, False, 4, 77637920, 75397920, 15680256),
    ("gru", 3, 1, 128, 128, 35, 128, 4480, False, False, 2, 32441600, 31982848, 22937856),
    ("gru", 4, 1, 256, 32, 64, 48, 3072, False, False, 4, 44233344, 38580864, 10617088),
    ("gru", 2, 1, 80, 1024, 500, 80, 40000, True, False, 2, 162955520, 162955520, 1064960256),
    ("gru", 2, 2, 80, 50, 500, 80, 40000, False, True, 4, 175139328, 143139328, 209000256),
    ("gru", 2, 2, 13, 100, 100, 256, 25600, True, False, 4, 138993888, 138993888, 266240256),
    ("lstm", 3, 1, 1024, 128, 64, 64, 4096, False, False, 4, 84837120, 56820480, 35651840),
    ("lstm", 2, 1, 40, 8, 100, 48, 4800, True, False, 2, 17182464, 17097984, 845056),
    ("lstm", 2, 2, 80, 13, 64, 256, 16384, False, True, 2, 53066816, 42488896, 9478400),
    ("lstm", 2, 2, 40, 64, 10, 10, 100, True, True, 4, 34550016, 34550016, 566656),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: "-".join(map(str, answer[:5])))
def test_workspace_and_reserve_are_cudnns(answer: tuple[object, ...]) -> None:
    kind, layers, directions, width, hidden, longest, samples, steps, is_packed, has_dropout, item, *said = answer
    made = Layers(kind, layers, directions, hidden, hidden, True, False, True, has_dropout)  # type: ignore[arg-type]
    batch = Batch(samples, longest, steps, width, is_packed)  # type: ignore[arg-type]
    training, inference, reserve = said
    assert made.reserve_bytes(batch, item) == pytest.approx(reserve, abs=256)  # type: ignore[arg-type]
    assert made.workspace_bytes(batch, item) == pytest.approx(training, rel=0.02)  # type: ignore[arg-type]
    evaluated = replace(made, is_training=False)
    assert evaluated.workspace_bytes(batch, item) == pytest.approx(inference, rel=1e-3)  # type: ignore[arg-type]
