"""The sentence about the largest size that fits."""

from __future__ import annotations

import pytest

from tracer.exporters.screen.prediction import largest_words
from tracer.results.prediction import LargestSize


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (LargestSize("--batch-size", 0), "Not even one sample fits."),
        (LargestSize("--tokens", 0), "Not even the smallest fits."),
        (LargestSize("--input", 736), "Largest image that fits: 736x736."),
        (
            LargestSize("--tokens", 1024, is_all=True),
            "Largest number of tokens that fits: 1024. The model has no more positions.",
        ),
        (
            LargestSize("--batch-size", 1 << 20, is_all=True),
            "Largest batch that fits: 1048576. No larger one was tried.",
        ),
        (
            LargestSize("--batch-size", 181, (128, 2)),
            "Largest batch that fits: 181. All 256 samples fit in 2 micro-batches: --batch-size 128 --accumulate 2.",
        ),
    ],
)
def test_it_says_what_fits_and_why_no_more_was_tried(largest: LargestSize, words: str) -> None:
    assert largest_words(largest) == words
