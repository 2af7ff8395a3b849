"""LitGPT's fine-tuning of language models, as its own tables of memory measured it; needs the package litgpt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.published_loop import Loop
from tracer.capture.unfilled import unfilled_weights

_QUERY_VALUE = {"lora_query": True, "lora_value": True}
_ALL_PARTS = {f"lora_{part}": True for part in ("query", "key", "value", "projection", "mlp", "head")}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run trained.

    Attributes:
        name: Of the configuration in LitGPT.
        length: Tokens of its longest text.
        adapters: Options of the low-rank adapters.
    """

    name: str
    length: int
    adapters: Mapping[str, Any]


def _adapted(name: str, length: int, rank: int, parts: Mapping[str, bool]) -> Recipe:
    return Recipe(name, length, {"lora_r": rank, "lora_alpha": 16, "lora_dropout": 0.05, **parts})


RECIPES: Mapping[str, Recipe] = {
    "phi-1_5": _adapted("phi-1_5", 1044, 8, _QUERY_VALUE),
    "llama-2-7b-hf": _adapted("Llama-2-7b-hf", 1304, 8, _QUERY_VALUE),
    "llama-2-13b-hf": _adapted("Llama-2-13b-hf", 1304, 8, _QUERY_VALUE),
    "llama-3-8b": _adapted("Llama-3-8B", 512, 32, _QUERY_VALUE),
    "llama-3.1-8b": _adapted("Llama-3.1-8B", 512, 32, _QUERY_VALUE),
    "mistral-7b-v0.2": _adapted("Mistral-7B-v0.2", 512, 32, _QUERY_VALUE),
    "phi-2": _adapted("phi-2", 512, 8, _ALL_PARTS),
    "tiny-llama": _adapted("tiny-llama-1.1b", 512, 32, _ALL_PARTS),
}
"""By the name of a published run: litgpt's config_hub/finetune, and the adapters of its tutorials/resource-tables.md.

Llama 3.2 3B with all weights is left out: weights, gradients and AdamW's state are 25.7 GB, and 16.5 were measured.
"""


class LitgptLoop(Loop):
    """One call is an iteration of `fit` in litgpt/finetune/lora.py: the longest text, two iterations for each step.

    How many iterations there are for a step changes nothing of the peak from the second on.
    """

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        from litgpt.lora import (  # type: ignore[import-not-found, unused-ignore]
            GPT,
            Config,
            mark_only_lora_as_trainable,
        )

        config = Config.from_name(recipe.name, **recipe.adapters)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with unfilled_weights():
                self.model: nn.Module = GPT(config)
        finally:
            torch.set_default_dtype(before)
        mark_only_lora_as_trainable(self.model)
        self.model.max_seq_length = recipe.length  # type: ignore[assignment]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4, betas=(0.9, 0.95))
        self._shape = (batch_size, recipe.length)
        self._num_calls = 0

    def __call__(self) -> Tensor:
        """One iteration; the loss."""
        from litgpt.utils import chunked_cross_entropy  # type: ignore[import-not-found, unused-ignore]

        input_ids, targets = (torch.zeros(self._shape, dtype=torch.int64) for _ in range(2))
        # Fabric converts what a model of 16 bits returns: `HalfPrecision.convert_output`.
        logits = [chunk.float() for chunk in self.model(input_ids, lm_head_chunk_size=128)]
        logits[-1] = logits[-1][..., :-1, :]
        loss: Tensor = chunked_cross_entropy(logits, targets[..., 1:])
        (loss / 2).backward()  # type: ignore[no-untyped-call]
        self._num_calls += 1
        if self._num_calls % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()
