"""torchtitan's own train.py of December 2024, as a rank of a job: FOLDER CONFIG [OPTIONS OF TORCHTITAN'S].

FOLDER has torchtitan's sources at commit 9dec370, CONFIG is one of its train_configs. Replaced are its data (by zeros),
its tokenizer (by the size of Llama 3's vocabulary) and tensorboard, which is off. Attention is flash's, as it was with
torch 2.6; torch 2.15 takes cuDNN's on an H100, which that day's checkpointing does not save.
"""

import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

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

settings = (folder / "train_configs" / f"{config}.toml").read_text("utf-8")
for setting in ("enable_profiling", "enable_tensorboard"):
    settings = settings.replace(f"{setting} = true", f"{setting} = false")
with tempfile.TemporaryDirectory() as own_folder:
    own = Path(own_folder) / "settings.toml"
    own.write_text(settings, "utf-8")
    sys.path.insert(0, str(folder))
    steps = ("--training.steps", str(STEPS), "--metrics.log_freq", "1")
    sys.argv = [str(folder / "train.py"), "--job.config_file", str(own), *steps, *options]
    runpy.run_path(sys.argv[0], run_name="__main__")
