"""Counts of a GPU's allocator for small trainings, beside the null GPU's for the same programs and card.

    python -m benchmarks.beside_null_gpu                       all programs, several at a time
    python -m benchmarks.beside_null_gpu resnet50 gpt2         these
    python -m benchmarks.beside_null_gpu --on rtx-4090         the null GPU alone, on another card

Each program runs three training steps twice, in processes of their own: on the device, and on its null GPU. A row has
the peaks of allocated and reserved memory of the last step, and how far off the null GPU is; behind it, what the driver
says that the process holds beside torch's allocator. Programs whose packages (torchvision, transformers) are missing
are left out. Exits with 1 if a program failed on
one side only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tables import as_markdown
from models.fno_workload import build_fno_workload
from tracer.capture.device import devices
from tracer.capture.device.processes import processes_on
from tracer.null_gpu.cards import devices_of, named_card
from tracer.null_gpu.process import environment, is_active
from tracer.null_gpu.values.switch import HostValues
from tracer.units import MIB

ROOT = Path(__file__).resolve().parent.parent
Facts = dict[str, Any]
Loss = Callable[[nn.Module], Tensor]
NUM_STEPS = 3
_LIMIT_S = 300.0
_BFLOAT16 = torch.bfloat16


def main() -> int:
    """Print the table; 1 if a program failed on one side only."""
    given = _arguments()
    if given.one is not None:
        values = HostValues() if is_active() else None
        print(json.dumps(_peaks(given.one)))
        if values is not None:
            values.close()
        return 0
    names = given.programs or list(PROGRAMS)
    if given.on is not None:
        card = devices_of(given.on).card
    elif torch.cuda.is_available() and (known := named_card(torch.cuda.get_device_name())) is not None:
        card = known
    else:
        raise SystemExit("There is no GPU here that is in the table of cards: name one with --on.")
    sides = {"null": environment((card,))}
    if given.on is None:
        sides = {"device": dict(os.environ), **sides}
    with ThreadPoolExecutor(given.workers) as pool:
        asked = {(name, side): pool.submit(_run, name, sides[side]) for name in names for side in sides}
        found = {key: future.result() for key, future in asked.items()}
    rows = [_row(name, found.get((name, "device"), {}), found[name, "null"]) for name in names]
    print(f"{card.name}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    header = ["program", "allocated", "null GPU", "off by", "reserved", "null GPU", "off by", "beside, MiB"]
    print(as_markdown([header, *rows]))
    pairs = [(found[name, "device"], found[name, "null"]) for name in names if (name, "device") in found]
    for measure in ("allocated", "reserved"):
        off = [abs(null[measure] / real[measure] - 1) for real, null in pairs if measure in real and measure in null]
        if off:
            equal = f"{sum(not one for one in off)} of {len(off)} to the byte"
            print(f"\n{measure}: {equal}, median {median(off):.3%} off, most {max(off):.2%}")
    return int(any(("error" in real) != ("error" in null) for real, null in pairs))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], metavar="PROGRAM")
    parser.add_argument("--on", metavar="CARD")
    parser.add_argument("--workers", type=int, default=max(2, (os.cpu_count() or 2) - 4))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(name: str, variables: dict[str, str]) -> Facts:
    command = [sys.executable, "-m", "benchmarks.beside_null_gpu", "--one", name]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_LIMIT_S:.0f} s"}
    if ended.returncode:
        return {"error": (ended.stderr.strip().splitlines() or ["no reason given"])[-1]}
    found: Facts = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def _row(name: str, real: Facts, null: Facts) -> list[str]:
    if "error" in real or "error" in null:
        return [name, str(real.get("error", "")), str(null.get("error", "")), "", "", "", "", ""]
    cells = [name]
    for measure in ("allocated", "reserved"):
        off = f"{null[measure] / real[measure] - 1:+.2%}" if real else ""
        cells += [f"{real[measure]:,}" if real else "", f"{null[measure]:,}", off]
    return [*cells, f"{real['beside'] / MIB:.0f}" if real.get("beside") else ""]


def _peaks(name: str) -> Facts:
    """A program's peaks in its last step, in bytes, in this process."""
    step = PROGRAMS[name]()
    for _ in range(NUM_STEPS):
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "beside": _used_by_this_process() - reserved if not is_active() else 0,
    }


def _used_by_this_process() -> int:
    """Bytes of the device that this process holds, by the driver; 0 where it does not say."""
    used = {number: size for number, _, size in processes_on(devices.uuid_of(torch.device("cuda", 0)) or "")}
    return used.get(os.getpid(), torch.cuda.memory_reserved())


# ---- programs --------------------------------------------------------------------------------------------------------


def _training(
    model: nn.Module,
    loss: Loss,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[], None]:
    made = optimizer(model.parameters())

    def step() -> None:
        made.zero_grad(set_to_none=True)
        with around():
            found = loss(model)
        found.backward()  # type: ignore[no-untyped-call]
        made.step()

    return step


def _autocast(dtype: torch.dtype) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: torch.autocast("cuda", dtype)


def _images(name: str, batch_size: int = 32, size: int = 224, dtype: torch.dtype | None = None, **options: Any) -> Any:
    from torchvision import models

    def loss(model: nn.Module) -> Tensor:
        logits = model(torch.randn(batch_size, 3, size, size, device="cuda"))
        return F.cross_entropy(logits.float(), torch.zeros(batch_size, dtype=torch.long, device="cuda"))

    model = getattr(models, name)(weights=None, **options).cuda()
    return _training(model, loss, around=nullcontext if dtype is None else _autocast(dtype))


def _text(model: Any, batch_size: int, length: int, words: int, compiled: bool = False, **how: Any) -> Any:
    called = torch.compile(model) if compiled else model

    def loss(_: nn.Module) -> Tensor:
        tokens = torch.randint(0, words, (batch_size, length), device="cuda")
        found: Tensor = called(input_ids=tokens, labels=tokens).loss
        return found

    return _training(model.train(), loss, **how)


def _gpt2(checkpointed: bool = False, attention: str = "sdpa", **how: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    options: Any = {"attn_implementation": attention}
    model: Any = GPT2LMHeadModel(GPT2Config(**options))
    if checkpointed:
        model.gradient_checkpointing_enable()
    return _text(model.cuda(), 4, 512, 50257, **how)


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: Any = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    model: Any = LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, vocab_size=32000, **sizes))
    return _text(model.to("cuda", _BFLOAT16), 2, 1024, 32000)


def _bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    model: Any = BertForMaskedLM(BertConfig())
    return _text(model.cuda(), 8, 256, 30000)


def _recurrent(kind: Any, samples: int, steps: int, **options: Any) -> Any:
    model = kind(256, 512, batch_first=True, **options).cuda()
    return _training(model, lambda model: model(torch.randn(samples, steps, 256, device="cuda"))[0].square().mean())


def _fno() -> Any:
    workload = build_fno_workload(device="cuda")

    def step() -> None:
        workload.backward(workload.forward(workload.next_batch()))
        workload.optimizer_step()

    return step


class _UNet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def block(from_: int, to: int) -> nn.Module:
            parts = [(nn.Conv2d(size, to, 3, padding=1), nn.BatchNorm2d(to), nn.ReLU(True)) for size in (from_, to)]
            return nn.Sequential(*parts[0], *parts[1])

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), block(4 * width, 2 * width)])
        self.last = nn.ModuleList([nn.ConvTranspose2d(2 * width, width, 2, 2), block(2 * width, width)])
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down[0](x)
        middle = self.down[1](F.max_pool2d(fine, 2))
        coarse = self.down[2](F.max_pool2d(middle, 2))
        middle = self.up[1](torch.cat([self.up[0](coarse), middle], 1))
        out: Tensor = self.out(self.last[1](torch.cat([self.last[0](middle), fine], 1)))
        return out


def _unet() -> Any:
    return _training(_UNet().cuda(), lambda model: model(torch.randn(4, 3, 256, 256, device="cuda")).square().mean())


PROGRAMS: dict[str, Callable[[], Callable[[], None]]] = {
    "fno": _fno,
    "unet": _unet,
    "lstm": lambda: _recurrent(nn.LSTM, 64, 200, num_layers=2, bidirectional=True, dropout=0.1),
    "gru": lambda: _recurrent(nn.GRU, 32, 100, num_layers=3),
    **{
        name: lambda name=name, size=size: _images(name, size)  # type: ignore[misc]
        for name, size in (
            ("resnet50", 32), ("vgg16", 16), ("densenet121", 16), ("efficientnet_b0", 32), ("mobilenet_v3_large", 32),
            ("regnet_y_1_6gf", 32), ("squeezenet1_1", 32), ("alexnet", 128), ("convnext_tiny", 16), ("swin_t", 16),
            ("vit_b_16", 16),
        )
    },
    "inception_v3": lambda: _images("inception_v3", 16, 299, aux_logits=False),
    "resnet50, bf16": lambda: _images("resnet50", dtype=_BFLOAT16),
    "gpt2": _gpt2,
    "gpt2, eager attention": lambda: _gpt2(attention="eager"),
    "gpt2, bf16": lambda: _gpt2(around=_autocast(_BFLOAT16)),
    "gpt2, bf16, compiled": lambda: _gpt2(around=_autocast(_BFLOAT16), compiled=True),
    "gpt2, checkpointed": lambda: _gpt2(checkpointed=True),
    "gpt2, fused": lambda: _gpt2(optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True)),
    "llama": _llama,
    "bert": _bert,
}  # fmt: skip
if find_spec("torchvision") is None or find_spec("transformers") is None:
    PROGRAMS = {name: PROGRAMS[name] for name in ("fno", "unet", "lstm", "gru")}


if __name__ == "__main__":
    raise SystemExit(main())
