"""What collectives' buffers hold is a sentence of the screen, and what is in 32 bits beside 16."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.analysis.profiles.test_attribution import BLOCK_BYTES, blocks, one_of_four, sharded, train
from tests.truth.isolate import value_in_fresh_process
from tracer.analysis.peak_row import PeakRow
from tracer.capture.torch_names import in_buffers_of
from tracer.exporters.screen.profile import _of_modules, parallelism_sentences, wide_sentence

GIB = 2**30


def row(
    category: str,
    size_bytes: int,
    dtype: str | None,
    *,
    count: int = 1,
    shape: tuple[int, ...] | None = None,
    line: int | None = 5,
) -> PeakRow:
    file = None if line is None else "train.py"
    return PeakRow(size_bytes, count, category, None, "", "forward", None, None, file, line, shape=shape, dtype=dtype)


def test_the_line_with_most_of_float32_is_named_where_a_step_makes_16_bits_too() -> None:
    rows = [
        row("ACTIVATION", 3 * GIB, "bfloat16"),
        row("PARAMETER", 30 * GIB, "float32", line=1),
        row("ACTIVATION", 2 * GIB, "float32", line=132, shape=(4, 1024, 131072)),
        row("AUTOGRAD_DETAIL", 3 * GIB, "float32", line=132, count=3, shape=(256, 1024)),
        row("TEMPORARY", 4 * GIB, "float32", line=140, shape=(1,)),
        row("ACTIVATION", 9 * GIB, "float32", line=None),
    ]
    assert wide_sentence(rows, 50 * GIB) == (
        "In float32 beside bfloat16: 5.00 GiB at train.py:132, the largest tensor 4 x 1,024 x 131,072."
    )
    assert wide_sentence(rows, 51 * GIB) is None
    assert wide_sentence(rows[1:], 50 * GIB) is None
    assert wide_sentence(rows[:2], 50 * GIB) is None


def test_what_a_function_of_torchs_puts_into_its_buffers() -> None:
    param = "torch/distributed/fsdp/_fully_shard/_fsdp_param.py"
    assert in_buffers_of(param, "alloc_all_gather_outputs") == "gathered parameters"
    assert in_buffers_of(param, "alloc_storage") is None
    assert in_buffers_of("train.py", "foreach_reduce") is None
    assert in_buffers_of("torch/nn/parallel/distributed.py", "_ddp_init_helper") == "buckets of gradients"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), ""),
        (("(training loop)", ""), ""),
        (("a",), " (a)"),
        (("a", "b"), " (a and b)"),
        (("a", "b", "c"), " (a, b and 1 more module)"),
        (("a", "b", "c", "d"), " (a, b and 2 more modules)"),
    ],
)
def test_two_modules_are_named_and_the_others_counted(names: tuple[str, ...], words: str) -> None:
    assert _of_modules(Counter({name: 9 - number for number, name in enumerate(names)})) == words


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_gathered_parameters_and_gradients_are_told_apart_and_have_their_modules() -> None:
    returned = value_in_fresh_process(_sentences_of_shards)
    assert 12.3 < BLOCK_BYTES / 1024 < 12.32
    assert returned == (
        "Communication at the peak: 24.62 KiB gathered parameters (0 and 1), 12.31 KiB gradients to be reduced (2).",
    )


def _sentences_of_shards() -> tuple[str, ...]:
    with one_of_four():
        return parallelism_sentences(train(sharded(blocks())))


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
def test_buckets_are_named() -> None:
    returned = value_in_fresh_process(_sentences_of_buckets)
    assert returned == ("Communication at the peak: 36.94 KiB buckets of gradients (module).",)
    assert round(3 * BLOCK_BYTES / 1024, 2) == 36.94


def _sentences_of_buckets() -> tuple[str, ...]:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    return parallelism_sentences(train(DistributedDataParallel(blocks())))
