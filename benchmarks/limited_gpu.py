"""This machine's GPU with the memory of a smaller card, so that programs of that card run out of memory here, too."""

from __future__ import annotations

import os

import torch

from tracer.null_gpu.cards import devices_of


def limited_to(card: str) -> dict[str, str]:
    """Variables in which torch's allocator reserves no more of the GPU than of this card, such as `h100:8GiB`."""
    fraction = devices_of(card).card.usable_bytes / torch.cuda.get_device_properties(0).total_memory
    own = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    settings = ",".join(filter(None, [own, f"per_process_memory_fraction:{fraction:.9f}"]))
    return {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
