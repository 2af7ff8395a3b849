"""torchtitan's own train.py of December 2024, one rank of a job: FOLDER NUM_RANKS eager|compiled.

FOLDER has torchtitan's sources at commit 9dec370. Replaced are what a process alone has not: its process group (by
torch's "fake" backend), its data (by zeros), its tokenizer (by the size of Llama 3's vocabulary) and tensorboard, which
is off. Attention is flash's, as it was with torch 2.6; torch 2.15 takes cuDNN's on an H100, which that day's
checkpointing does not save.
"""

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

folder, num_ranks, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
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
join = dist.init_process_group
dist.init_process_group = lambda **_: join("fake", store=FakeStore(), rank=0, world_size=num_ranks)
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks)}
torch.backends.cuda.enable_cudnn_sdp(False)

settings = (folder / "train_configs" / "llama3_8b.toml").read_text("utf-8")
for what in ("enable_profiling", "enable_tensorboard"):
    settings = settings.replace(f"{what} = true", f"{what} = false")
Path("settings.toml").write_text(settings, "utf-8")
sys.path.insert(0, str(folder))
sys.argv = [
    str(folder / "train.py"),
    *("--job.config_file", "settings.toml"),
    *("--training.batch_size", "2"),
    *("--training.steps", str(STEPS)),
    *("--metrics.log_freq", "1"),
    *(["--training.compile"] if how == "compiled" else []),
]
runpy.run_path(sys.argv[0], run_name="__main__")
