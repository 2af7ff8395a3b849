"""torchtitan's own train.py of March or June 2025, as a rank of a job: FOLDER CONFIG [OPTIONS OF TORCHTITAN'S].

FOLDER has torchtitan's sources at commit 9a2f578 or e7c0cae, CONFIG is one of Llama 3's. Replaced are its data (by
zeros), its tokenizer (by the size of Llama 3's vocabulary) and tensorboard, which is off. Attention is flash's.
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


class Loader:
    """Zeros without end; torchtitan asks for its state. In June inputs had a name."""

    def __init__(self, training: Any) -> None:
        self.in_june = hasattr(training, "local_batch_size")
        self.size = (training.local_batch_size if self.in_june else training.batch_size, training.seq_len)

    def __iter__(self) -> Iterator[Any]:
        while True:
            tokens, labels = (torch.zeros(self.size, dtype=torch.int64) for _ in range(2))
            yield {"input": tokens} if self.in_june else tokens, labels

    def state_dict(self) -> dict[str, Any]:
        return {}


def build_data_loader(*, job_config: Any, **_: Any) -> Loader:
    return Loader(job_config.training)


def build_tokenizer(*_: Any) -> SimpleNamespace:
    return SimpleNamespace(n_words=VOCABULARY, eos_id=0)


datasets: Any = ModuleType("torchtitan.datasets.hf_datasets")
datasets.build_hf_dataloader = build_data_loader
tokenizer: Any = ModuleType("torchtitan.datasets.tokenizer.tiktoken")
tokenizer.build_tiktoken_tokenizer = build_tokenizer
tokenizers: Any = ModuleType("torchtitan.datasets.tokenizer")
tokenizers.TikTokenizer = build_tokenizer
tensorboard: Any = ModuleType("torch.utils.tensorboard")
tensorboard.SummaryWriter = object
sys.modules |= {module.__name__: module for module in (datasets, tokenizers, tokenizer, tensorboard)}
torch.backends.cuda.enable_cudnn_sdp(False)

(found,) = (folder / "torchtitan/models").glob(f"llama*/train_configs/{config}.toml")
begin(
    folder,
    "torchtitan/train.py",
    found,
    off=("enable_profiling", "enable_tensorboard"),
    num_steps=STEPS,
    options=options,
)
