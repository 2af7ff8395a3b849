"""The programs behind published measurements: what each run built and what one iteration of it did.

What a program keeps alive from one iteration to the next, and where it lets go of its gradients, decides more than any
allocator does; so each loop here is the measured one, line by line.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.published_liger import COPIES, MODULES, TYPES, ModuleLoop
from benchmarks.published_litgpt import RECIPES, LitgptLoop
from benchmarks.published_loop import Loop
from benchmarks.published_runs import PublishedRun

TEXT_LENGTH = 128
NUM_CLASSES = {"mnasnet1_0": 10, "mobilenet_v3_small": 10, "mobilenet_v3_large": 10}
LEARNING_RATE = 1e-3
MLP_SAMPLES = 4096


class Unknown(Exception):  # noqa: N818, no error: the run is left out of the tables and counted
    """What is missing to build a run's program."""


@dataclass(frozen=True, slots=True)
class Program:
    """A run's program.

    Attributes:
        build: Makes the loop, with the model and the optimizer, as the program does before its first iteration.
        num_steps: Iterations until nothing new is allocated, or as many as were run.
    """

    build: Callable[[], Loop]
    num_steps: int


def program_of(run: PublishedRun) -> Program:
    """The program that was measured.

    Raises:
        Unknown: Nobody has written down what it was.
    """
    makers: dict[str, Callable[[PublishedRun], Program]] = {
        "xmem": _xmem,
        "gpumemnet_mlp": _mlp,
        "gpumemnet_test": _imagenet,
        "gpumemnet_timm": _timm_train,
        "timm_outcome": _timm_benchmark,
        "liger_module": _liger,
        "litgpt_lora": _litgpt,
        "litgpt_config": _litgpt,
    }
    if run.collection not in makers:
        raise Unknown(f"{run.collection} is not built here")
    return makers[run.collection](run)


def _optimizer(name: str, model: nn.Module, **arguments: Any) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, name)
    made: torch.optim.Optimizer = kind(model.parameters(), **({"lr": LEARNING_RATE} | arguments))
    return made


def _litgpt(run: PublishedRun) -> Program:
    if find_spec("litgpt") is None:
        raise Unknown("litgpt is not installed")
    if run.model not in RECIPES:
        raise Unknown(f"its figure is less than weights, gradients and optimizer state of {run.model}")
    return Program(lambda: LitgptLoop(RECIPES[run.model], int(run.batch_size)), num_steps=4)


# ---- xMem: fixed batches, what the loop's names hold stays until the name is assigned again --------------------------


def _xmem(run: PublishedRun) -> Program:
    size = int(run.batch_size)
    if run.kind == "cnn":
        return Program(lambda: _ImageLoop(torchvision_model(run.model), run.optimizer, size, 86), num_steps=4)
    return Program(lambda: _TextLoop(language_model(run.model), run.optimizer, size), num_steps=4)


class _ImageLoop(Loop):
    """xMem's trainer on images: the batch goes when the next is loaded, outputs and predictions stay until replaced."""

    def __init__(self, model: nn.Module, optimizer: str, batch_size: int, image_size: int) -> None:
        self.model = model.train()
        self.optimizer = _optimizer(optimizer, model)
        self._shape = (batch_size, 3, image_size, image_size)
        self._kept: dict[str, Any] = {}

    def __call__(self) -> Tensor:
        kept, optimizer = self._kept, self.optimizer
        assert optimizer is not None
        kept.pop("inputs", None)
        kept.pop("labels", None)
        optimizer.zero_grad()
        kept["inputs"], kept["labels"] = torch.randn(self._shape), torch.zeros(self._shape[0], dtype=torch.int64)
        kept["outputs"] = self.model(kept["inputs"])
        kept["loss"] = F.cross_entropy(kept["outputs"], kept["labels"])
        kept["loss"].backward()
        optimizer.step()
        kept["highest"], kept["preds"] = torch.max(kept["outputs"], 1)
        return kept["loss"].detach()


class _TextLoop(Loop):
    """xMem's trainer on text: outputs and the batch stay until they are replaced."""

    def __init__(self, model: nn.Module, optimizer: str, batch_size: int) -> None:
        self.model = model.train()
        self.optimizer = _optimizer(optimizer, model)
        self._shape = (batch_size, TEXT_LENGTH)
        self._kept: dict[str, Any] = {}

    def __call__(self) -> Tensor:
        kept, optimizer = self._kept, self.optimizer
        assert optimizer is not None
        optimizer.zero_grad()
        kept["batch"] = {
            "input_ids": torch.zeros(self._shape, dtype=torch.int64),
            "attention_mask": torch.ones(self._shape, dtype=torch.int64),
            "labels": torch.zeros(self._shape, dtype=torch.int64),
        }
        kept["outputs"] = self.model(**kept["batch"])
        kept["loss"] = kept["outputs"].loss
        kept["loss"].backward()
        optimizer.step()
        return kept["loss"].detach()


def torchvision_model(name: str) -> nn.Module:
    """A model of torchvision without weights, with the classes that xMem gave it."""
    import torchvision

    found: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=NUM_CLASSES.get(name, 1000))
    return found


def language_model(name: str) -> nn.Module:
    """A model of transformers from its configuration, by the name it has here."""
    import transformers as hf

    if name in ("t5-small", "t5-base"):
        settings: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0}
        if name == "t5-base":
            settings |= {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
        found: nn.Module = hf.T5ForConditionalGeneration(hf.T5Config(**settings))
        return found
    configurations: dict[str, Callable[[], Any]] = {
        "gpt2": hf.GPT2Config,
        "distilgpt2": lambda: hf.GPT2Config(n_layer=6),
        "cerebras-111m": lambda: hf.GPT2Config(
            n_embd=768, n_layer=10, n_head=12, n_inner=3072, n_positions=2048, activation_function="gelu",
            attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
        ),
        "opt-125m": hf.OPTConfig,
        "opt-350m": lambda: hf.OPTConfig(
            hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
            do_layer_norm_before=False,
        ),
        "gpt-neo-125m": lambda: hf.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]],
            intermediate_size=None,
        ),
    }  # fmt: skip
    if name not in configurations:
        raise Unknown(f"the configuration of {name} is not here")
    attention = "eager" if name == "gpt-neo-125m" else "sdpa"
    return hf.AutoModelForCausalLM.from_config(configurations[name](), attn_implementation=attention)


# ---- GPUMemNet -------------------------------------------------------------------------------------------------------


def _mlp(run: PublishedRun) -> Program:
    """`mlp_next.py`: epochs over 4,096 samples, so that the last batch of each is smaller; a summary before."""
    sizes = dict(part.split(":", 1) for part in run.model.removesuffix(".out").split("_") if ":" in part)
    layers = ast.literal_eval(run.library[run.library.index("[") :])
    rate = float(run.model.split("dropout:")[1].split("_")[0])
    batch, width = int(run.batch_size), int(sizes["input"])
    whole, rest = divmod(MLP_SAMPLES, batch)
    # Batch norm refuses the last batch where it is a single sample, and so ended that run.
    num_steps = whole if rest == 1 else whole + bool(rest) + 2
    return Program(lambda: _MlpLoop(mlp(width, layers, rate), batch, width), num_steps=num_steps)


def mlp(width: int, layers: list[tuple[str, int, int]], dropout: float) -> nn.Sequential:
    """A network from the printed list of its layers: name, output features, parameters."""
    made: list[nn.Module] = []
    features = width
    for name, size, _ in layers:
        if name == "linear":
            made.append(nn.Linear(features, size))
            features = size
        elif name == "batch_normalization":
            made.append(nn.BatchNorm1d(size))
        elif name == "dropout":
            made.append(nn.Dropout(dropout))
        else:
            made.append(nn.Softmax(dim=1) if name == "Softmax" else getattr(nn, name)())
    return nn.Sequential(*made)


class _MlpLoop(Loop):
    """Names live to the end of the function: batch, outputs and loss are replaced, never dropped."""

    def __init__(self, model: nn.Sequential, batch_size: int, width: int) -> None:
        self.model = model.train()
        self.optimizer = torch.optim.Adam(model.parameters())
        self._sizes = _epoch_sizes(batch_size)
        self._width = width
        self._num_classes = next(layer for layer in reversed(model) if isinstance(layer, nn.Linear)).out_features
        self._kept: dict[str, Any] = {}
        self._has_summary = False

    def __call__(self) -> Tensor:
        kept, optimizer = self._kept, self.optimizer
        assert optimizer is not None
        if not self._has_summary:  # torchsummary: one forward pass of two samples, the output dropped
            self.model(torch.randn(2, self._width))
            self._has_summary = True
        size = next(self._sizes)
        inputs, labels = torch.randn(size, self._width), torch.zeros(size, dtype=torch.int64)
        kept["inputs"], kept["labels"] = inputs, labels
        del inputs, labels
        optimizer.zero_grad()
        kept["outputs"] = self.model(kept["inputs"])
        kept["loss"] = F.cross_entropy(kept["outputs"], kept["labels"])
        kept["loss"].backward()
        optimizer.step()
        return kept["loss"].detach()


def _epoch_sizes(batch_size: int) -> Iterator[int]:
    while True:
        whole, rest = divmod(MLP_SAMPLES, batch_size)
        yield from [batch_size] * whole
        if rest:
            yield rest


def _imagenet(run: PublishedRun) -> Program:
    """`Test_Pipeline/cnn_models`: a summary of one batch, then the same loop on ImageNet."""
    if run.library != "torchvision":
        raise Unknown(f"{run.model}: the optimizer is not known")
    size = int(run.batch_size)
    return Program(lambda: _ImagenetLoop(torchvision_model(run.model), size), num_steps=3)


class _ImagenetLoop(Loop):
    """`inputs, labels = inputs.to(device), labels.to(device)`: both host names first, so the last batch goes before."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        self._size = batch_size
        self._kept: dict[str, Any] = {}
        self._has_summary = False

    def __call__(self) -> Tensor:
        kept, optimizer = self._kept, self.optimizer
        assert optimizer is not None
        if not self._has_summary:
            self.model(torch.randn(2, 3, 224, 224))
            self._has_summary = True
        self.model.train()
        kept.pop("inputs", None)
        kept.pop("labels", None)
        kept["inputs"] = torch.randn(self._size, 3, 224, 224)
        kept["labels"] = torch.zeros(self._size, dtype=torch.int64)
        optimizer.zero_grad()
        kept["outputs"] = self.model(kept["inputs"])
        kept["loss"] = F.cross_entropy(kept["outputs"], kept["labels"])
        kept["loss"].backward()
        optimizer.step()
        return kept["loss"].detach()


# ---- timm ------------------------------------------------------------------------------------------------------------


def timm_model(name: str, fused_attention: bool) -> tuple[nn.Module, tuple[int, int, int]]:
    """A model of timm without weights, and the size of its images."""
    try:
        import timm  # type: ignore[import-not-found, unused-ignore]
        from timm.layers import set_fused_attn  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise Unknown("timm is not installed") from None
    set_fused_attn(fused_attention)
    if not timm.is_model(name):
        raise Unknown(f"timm {timm.__version__} has no model {name}")
    model = timm.create_model(name, pretrained=False)
    return model, timm.data.resolve_data_config({}, model=model)["input_size"]


def _timm_train(run: PublishedRun) -> Program:
    """The command is not published; timm's own `train.py` by its defaults is a guess, so differences are judged."""
    size = int(run.batch_size)

    def build() -> Loop:
        model, shape = timm_model(run.model, fused_attention=True)
        return _TimmLoop(model, (size, *shape), {}, amp=False, static_input=False, set_to_none=True)

    return Program(build, num_steps=3)


def _timm_benchmark(run: PublishedRun) -> Program:
    """`benchmark.py` of timm 0.6.6 under torch 1.12: gradients zeroed in place, a loop over the optimizer's tensors."""
    size, image = int(run.batch_size), int(run.shape)
    is_channels_last = "channels_last" in run.amp

    def build() -> Loop:
        model, _ = timm_model(run.model, fused_attention=False)
        if is_channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        options = {"foreach": False, "is_channels_last": is_channels_last}
        return _TimmLoop(model, (size, 3, image, image), options, amp=True, static_input=True, set_to_none=False)

    return Program(build, num_steps=3)


class _TimmLoop(Loop):
    """Cross entropy, SGD with Nesterov momentum; the input is made once where it is static."""

    def __init__(
        self,
        model: nn.Module,
        shape: tuple[int, ...],
        options: dict[str, bool],
        *,
        amp: bool,
        static_input: bool,
        set_to_none: bool,
    ) -> None:
        self.model = model.train()
        self._format = torch.channels_last if options.pop("is_channels_last", False) else torch.contiguous_format
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=LEARNING_RATE, momentum=0.9, nesterov=True, foreach=options.get("foreach")
        )
        self._shape, self._amp, self._static, self._set_to_none = shape, amp, static_input, set_to_none
        self._num_classes = int(getattr(model, "num_classes", 1000))
        self._kept: dict[str, Any] = {}

    def __call__(self) -> Tensor:
        kept, optimizer = self._kept, self.optimizer
        assert optimizer is not None
        if not self._static or "inputs" not in kept:
            kept["inputs"] = torch.randn(self._shape).contiguous(memory_format=self._format)
        optimizer.zero_grad(set_to_none=self._set_to_none)
        with torch.autocast(torch.get_default_device().type, torch.float16, enabled=self._amp):
            output = self.model(kept["inputs"])
        if isinstance(output, tuple):
            output = output[0]
        kept["target"] = torch.zeros(self._shape[0], dtype=torch.int64)
        loss = F.cross_entropy(output, kept["target"])
        loss.backward()
        optimizer.step()
        return loss.detach()


# ---- Liger -----------------------------------------------------------------------------------------------------------


def _liger(run: PublishedRun) -> Program:
    name = run.model.split(" ")[0]
    mode = run.model.rsplit(", ", 1)[1].rstrip(")")
    variable, value = run.batch_size.split("=")
    settings = json.loads(run.shape) | {variable: int(value), "mode": mode}
    settings["dtype"] = TYPES.get(settings.get("dtype", "torch.float32"), torch.float32)
    if name not in MODULES:
        raise Unknown(f"{name} asks for values: how many tokens each expert gets")
    make_module, start = MODULES[name]

    def build() -> Loop:
        with torch.device("meta"):
            modules = [make_module(settings).to(settings["dtype"]) for _ in range(COPIES.get(name, 1))]
        return ModuleLoop(nn.ModuleList(modules), settings, start)

    return Program(build, num_steps=3)
