"""torchtitan's own train.py of December 2024, as a rank of a job: FOLDER CONFIG [OPTIONS OF TORCHTITAN'S].

FOLDER has torchtitan's sources at commit 9dec370, CONFIG is one of its train_configs. Replaced are its data (by zeros),
its tokenizer (by the size of Llama 3's vocabulary) and tensorboard, which is off. Attention is flash's, as it was with
torch 2.6; torch 2.15 takes cuDNN's on an H100, which that day's checkpointing does not save.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from titan_start import begin

folder, config, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
VOCABULARY, STEPS = 128256, 4


def data_loader(*arguments: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    batch_size, length = arguments[3:5]
    while True:
        yield torch.zeros(batch_size, length, dtype=torch.int64), torch.zeros(batch_size, length, dtype=torch.int64)


datasets: Any = ModuleType("torchtitan.datasets")
datasets.build_hf_data_loader = data_loader
datasets.build_tokenizer = lambda *_: SimpleNamespace(n_words=VOCABULARY)
tensorboard: Any = ModuleType("torch.utils.tensorboard")
tensorboard.SummaryWriter = object
sys.modules |= {datasets.__name__: datasets, tensorboard.__name__: tensorboard}
torch.backends.cuda.enable_cudnn_sdp(False)

settings = folder / "train_configs" / f"{config}.toml"
begin(folder, "train.py", settings, off=("enable_profiling", "enable_tensorboard"), num_steps=STEPS, options=options)
