"""`--input`: shapes, types and ranges of random batches, and a sentence for each text that is no input."""

from __future__ import annotations

import pytest
import torch

from tracer.errors import UserModelError
from tracer.workloads.random_inputs import parse_input, random_batches

CPU = torch.device("cpu")


def test_inputs_are_what_was_asked_for_and_follow_from_the_seed() -> None:
    texts = ["3x4", "ids=5:int64:2-7", "mask=5:bool", "label=scalar:int32:-3-0", "half=2:bfloat16", "z=2:complex64"]
    specs = [parse_input(text) for text in texts]
    args, named = random_batches(specs, batch_size=64, device=CPU, seed=1)()
    assert [tuple(tensor.shape) for tensor in args] == [(64, 3, 4)]
    assert {name: (tuple(t.shape), t.dtype) for name, t in named.items()} == {
        "ids": ((64, 5), torch.int64),
        "mask": ((64, 5), torch.bool),
        "label": ((64,), torch.int32),
        "half": ((64, 2), torch.bfloat16),
        "z": ((64, 2), torch.complex64),
    }
    assert sorted(named["ids"].unique().tolist()) == [2, 3, 4, 5, 6]
    assert sorted(named["label"].unique().tolist()) == [-3, -2, -1]
    again, _ = random_batches(specs, batch_size=64, device=CPU, seed=1)()
    assert torch.equal(args[0], again[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3xa", "3xa is not a shape"),
        ("", "nothing is not a shape"),
        ("3x0", "every size must be at least 1"),
        ("3:float99", "torch has no dtype float99"),
        ("3:nn", "torch has no dtype nn"),
        ("3:int64", "has integers and does not say which"),
        ("3:int64:5-5", "leaves no integer"),
        ("3:int8:0-300", "int8 cannot hold that range"),
        ("3:float32:0-1", "only integers have a range"),
        ("a=b=3", "is not a shape"),
    ],
)
def test_an_input_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserModelError, match=message):
        parse_input(text)
