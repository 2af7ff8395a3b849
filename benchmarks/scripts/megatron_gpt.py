"""A small GPT of Megatron-core: its own layers, tensor parallel, a pipeline and the distributed optimizer.

python megatron_gpt.py TENSOR PIPELINE
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

tensor, pipeline = int(sys.argv[1]), int(sys.argv[2])
VOCABULARY, LENGTH, BATCH, MICROBATCHES, STEPS = 8192, 1024, 2, 4, 8

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(torch.distributed.get_rank() % torch.cuda.device_count())
parallel_state.initialize_model_parallel(tensor, pipeline)
model_parallel_cuda_manual_seed(0)
config = TransformerConfig(
    num_layers=4, hidden_size=1024, num_attention_heads=16, bf16=True, params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
    gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
)  # fmt: skip
model = GPTModel(
    config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
).cuda()  # fmt: skip
sharding = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
wrapped = DistributedDataParallel(config, sharding, Float16Module(config, model))
optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=True, use_distributed_optimizer=True), [wrapped])
config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss


def batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")


def forward_step(data: Iterator[torch.Tensor], model: Any) -> Any:
    tokens = next(data)
    positions = torch.arange(LENGTH, device="cuda").expand_as(tokens)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)[None, None]
    return model(tokens, positions, mask, labels=tokens), partial(loss_of)


def loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


data, run = batches(), get_forward_backward_func()
for _ in range(STEPS):
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward_step, data_iterator=data, model=[wrapped], num_microbatches=MICROBATCHES,
        seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False,
    )  # fmt: skip
    optimizer.step()
