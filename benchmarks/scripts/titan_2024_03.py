"""torchtitan's own train.py of March 2024, when it was torchtrain, as a rank of a job: FOLDER CONFIG [OPTIONS].

FOLDER has its sources at commit 83c879f, CONFIG is one of its train_configs. Replaced are its data (by zeros), its
tokenizer (by the size of Llama 2's vocabulary), tensorboard, which is off, and what torch called selective
checkpointing then. The last lines say the largest bytes active and reserved of all steps.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch._dynamo.config
from titan_start import begin
from torch.utils import checkpoint

folder, config, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
VOCABULARY, STEPS, GIB = 32000, 4, 2**30
largest = {"active": 0, "reserved": 0}


def data_loader(*arguments: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    batch_size, length = arguments[3:5]
    while True:
        yield torch.zeros(batch_size, length, dtype=torch.int64), torch.zeros(batch_size, length, dtype=torch.int64)


def selective_contexts(policy: Callable[..., bool]) -> Any:
    def of_today(context: Any, *arguments: Any, **options: Any) -> bool:
        return policy("recompute" if context.is_recompute else "forward", *arguments, **options)

    return checkpoint.create_selective_checkpoint_contexts(of_today)


def remembered(reset: Callable[..., None]) -> Callable[..., None]:
    """torchtrain resets both peaks after each line of its log."""

    def remember(*arguments: Any) -> None:
        for name in largest:
            largest[name] = max(largest[name], torch.cuda.memory_stats()[f"{name}_bytes.all.peak"])
        reset(*arguments)

    return remember


datasets: Any = ModuleType("torchtrain.datasets")
datasets.create_tokenizer = lambda *_: SimpleNamespace(n_words=VOCABULARY)
datasets.dataloader_fn = {"alpaca": data_loader}
tensorboard: Any = ModuleType("torch.utils.tensorboard")
tensorboard.SummaryWriter = object
sys.modules |= {datasets.__name__: datasets, tensorboard.__name__: tensorboard}
checkpoint._pt2_selective_checkpoint_context_fn_gen = selective_contexts  # type: ignore[attr-defined]
torch._dynamo.config._bypass_keys.add("_experimental_support_context_fn_in_torch_utils_checkpoint")
torch.backends.cuda.enable_cudnn_sdp(False)
torch.cuda.reset_peak_memory_stats = remembered(torch.cuda.reset_peak_memory_stats)

settings = folder / "train_configs" / f"{config}.toml"
begin(folder, "train.py", settings, off=("run_profiler", "enable_tensorboard"), num_steps=STEPS, options=options)
print(*(f"{name} {bytes_ / GIB:.2f} GiB" for name, bytes_ in largest.items()), sep=", ")
