"""A transformers Trainer, and the callback that profiles it. The model is built from a config: nothing is downloaded.

python examples/trainer.py [folder]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the case that the program is not on the path

from tracer.integrations.transformers import TimelineCallback


def samples(count: int, length: int = 16) -> list[dict[str, torch.Tensor]]:
    """Random texts, which are to be continued with themselves."""
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (count, length))]


def main(save_dir: str = "profiler_outputs") -> None:
    """Train a tiny GPT-2 for 12 steps."""
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=16))
    with tempfile.TemporaryDirectory() as checkpoints:
        arguments = TrainingArguments(
            checkpoints,
            max_steps=12,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        callback = TimelineCallback(save_dir, screen=True)
        Trainer(model, arguments, train_dataset=samples(64), callbacks=[callback]).train()


if __name__ == "__main__":
    main(*sys.argv[1:2])
