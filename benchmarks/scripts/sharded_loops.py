"""Loops of others as ranks of a job: trainer, accelerate or lightning, and each with -fsdp behind it."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

how, _, sharding = sys.argv[1].partition("-")
is_sharded, STEPS = sharding == "fsdp", 8


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Drawn ones, which are their own labels."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 4096, (256,))
        return {"input_ids": tokens, "labels": tokens}


def layers() -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(4)])


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(512, 2048)), batch_size=8)


def trainer() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=4096, max_position_embeddings=512,
    )  # fmt: skip
    options: dict[str, Any] = {"max_steps": STEPS, "per_device_train_batch_size": 4, "bf16": True, "report_to": []}
    if is_sharded:
        options |= {"fsdp": "full_shard auto_wrap"}
        options |= {"fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
    arguments = TrainingArguments("trained", save_strategy="no", logging_steps=4, **options)
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens()).train()


def accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=10**6)
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin if is_sharded else None)
    net = layers()
    net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), batches())
    for _, (batch,) in zip(range(STEPS), data, strict=False):
        loss = net(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert accelerator.gather(loss.detach()).shape == (4,)


def lightning() -> None:
    import lightning as L
    from lightning.pytorch.strategies import FSDPStrategy

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    strategy = FSDPStrategy(auto_wrap_policy={nn.Linear}) if is_sharded else "ddp"
    L.Trainer(
        accelerator="gpu", devices=4, strategy=strategy, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Module(), batches())  # fmt: skip


{"trainer": trainer, "accelerate": accelerate, "lightning": lightning}[how]()
