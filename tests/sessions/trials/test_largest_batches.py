"""The largest batches of a loader: which they are, and that a script gets them first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tracer.results.prediction import ReadBatch
from tracer.sessions.trials.largest_batches import LargestBatches


def loader(lengths: list[int], **options: Any) -> DataLoader:
    """A loader of one text a batch, of these lengths."""
    texts = [torch.full((length,), length) for length in lengths]
    return DataLoader(texts, collate_fn=lambda batch: {"ids": torch.stack(batch)}, **options)  # type: ignore[arg-type]


def given(batches: Any) -> list[int]:
    return [batch["ids"].shape[1] for batch in batches]


def test_a_script_gets_the_largest_batch_and_no_other() -> None:
    lengths = [3, 8, 2, 11, 5, 11, 40]
    with LargestBatches(6) as batches:
        assert given(loader(lengths)) == [11] * 6
    assert batches.read.num_batches == 6  # the seventh was not read
    assert batches.read.largest == (ReadBatch(3, ("ids [1, 11] int64",)),)
    assert given(loader(lengths)) == lengths  # outside, a loader is torch's


def test_shapes_of_which_none_covers_the_other_are_all_given() -> None:
    """Wide and short, narrow and long: the one of most bytes begins and comes back."""
    shapes = [(8, 4), (4, 8), (2, 20), (6, 4), (1, 1)]
    images = [torch.zeros(shape) for shape in shapes]
    with LargestBatches(100) as batches:
        seen = [tuple(batch.shape[1:]) for batch in DataLoader(images, batch_size=1)]  # type: ignore[arg-type]
    assert seen == [(2, 20), (8, 4), (4, 8), (2, 20), (2, 20)]
    assert [(batch.index, batch.tensors) for batch in batches.read.largest] == [
        (2, ("[1, 2, 20] float32",)),
        (0, ("[1, 8, 4] float32",)),
        (1, ("[1, 4, 8] float32",)),
    ]


def test_few_are_kept_and_the_longest_is_among_them() -> None:
    """Each is wider and shorter than the one before: 30 of which none covers another."""
    shapes = [(60 - 2 * number, 1 + number) for number in range(30)]
    most = max(shapes, key=lambda shape: shape[0] * shape[1])
    with LargestBatches(100) as batches:
        list(DataLoader([torch.zeros(shape) for shape in shapes], batch_size=1))  # type: ignore[arg-type]
    kept = [shapes[batch.index] for batch in batches.read.largest]
    assert len(kept) == 4 and kept[0] == most and shapes[0] in kept


def test_a_batch_that_the_script_takes_apart_is_whole_the_next_time() -> None:
    with LargestBatches(3):
        for batch in loader([1, 2, 3]):
            assert batch.pop("ids").add_(1).sum() == 12


def test_the_loader_that_gave_the_last_batch_is_told_of() -> None:
    """An evaluation before the training has a loader of its own; a second epoch is not read again."""
    evaluation, training = loader([70]), loader([4, 9], shuffle=True)
    with LargestBatches(10) as batches:
        assert batches.read.num_batches == 0
        assert given(evaluation) == [70]
        assert given(training) == given(training) == [9, 9]
    assert batches.read.num_batches == 2 and batches.read.largest[0].tensors == ("ids [1, 9] int64",)


class Sample:
    def __init__(self) -> None:
        self.image, self.target = torch.zeros(3, 4), [{"boxes": torch.zeros(2, 4), "name": "x"}]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.zeros(2), [torch.ones(1, dtype=torch.bool)]), ("0 [2] float32", "1.0 [1] bool")),
        (Sample(), ("image [3, 4] float32", "target.0.boxes [2, 4] float32")),
        ("text", ()),
    ],
)
def test_tensors_are_found_in_what_a_loader_gives(batch: Any, words: tuple[str, ...]) -> None:
    with LargestBatches(1) as batches:
        list(DataLoader([batch], batch_size=None))  # type: ignore[arg-type]
    assert batches.read.largest == (ReadBatch(0, words),)
