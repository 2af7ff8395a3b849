"""Batches that are filled up: found among the variables of frames on the way to an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracer.capture.objects.padding import find_padding

ROWS = torch.zeros(3, 64, dtype=torch.int64)
ROWS[0, :20], ROWS[1, :9], ROWS[2, :1] = 5, 7, 3
LEADING = ROWS.flip(1)
EMPTY_BEGIN = ROWS.clone()
EMPTY_BEGIN[2] = 0
FULL = ROWS.clone()
FULL[1, 50] = 4


def raised_with(**variables: Any) -> BaseException:
    def call(batch: Any) -> None:
        raise ValueError(batch.keys())

    with pytest.raises(ValueError, match="dict_keys") as raised:
        call(variables)
    return raised.value


@pytest.mark.parametrize(
    ("batch", "num_used"),
    [
        (ROWS, 20),
        (LEADING, 20),
        (ROWS != 0, 20),
        (EMPTY_BEGIN, None),  # a picture with an empty margin begins with it
        (FULL, None),
        (ROWS.float(), None),
        (ROWS[:1], None),
        (torch.zeros(3, 64, dtype=torch.int64), None),
        (torch.empty(3, 64, dtype=torch.int64, device="meta"), None),
    ],
)
def test_columns_that_no_row_uses(batch: torch.Tensor, num_used: int | None) -> None:
    found = find_padding(raised_with(input_ids=batch))
    assert (found and (found.name, found.num_rows, found.num_columns, found.num_used)) == (
        num_used and ("input_ids", 3, 64, num_used)
    )


def test_a_tensor_that_torch_func_wraps_has_no_values_to_read() -> None:
    found = []

    def call(rows: torch.Tensor) -> torch.Tensor:
        found.append(find_padding(raised_with(input_ids=rows)))
        return rows

    torch.func.vmap(call)(torch.stack([ROWS, ROWS]))
    assert found == [None]


def test_a_mask_says_nothing_of_numbers_that_fill_their_columns() -> None:
    """Of answers of 32 tokens behind prompts of 96, of which a loss counts the answers; and places are no padding."""

    def fails(with_numbers: bool) -> None:
        token_mask = torch.zeros(4, 128, dtype=torch.bool)
        token_mask[:, 96:] = True
        token_mask[1, 96:100] = False
        places = torch.arange(128).expand(4, -1)
        numbers = torch.arange(512).view(4, 128) if with_numbers else None
        raise RuntimeError(token_mask, places, numbers)

    for with_numbers in (False, True):
        with pytest.raises(RuntimeError) as caught:
            fails(with_numbers)
        assert (find_padding(caught.value) is None) == with_numbers
