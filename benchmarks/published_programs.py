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


# ---- Liger: single modules, forward and backward again and again -----------------------------------------------------

_LIGER_TYPES = {"torch.bfloat16": torch.bfloat16, "torch.float32": torch.float32}
Settings = dict[str, Any]
Start = Callable[[Any, Settings], Callable[[], object]]
"""From the module and its settings to what one iteration does; makes the inputs."""


def _liger(run: PublishedRun) -> Program:
    name = run.model.split(" ")[0]
    mode = run.model.rsplit(", ", 1)[1].rstrip(")")
    variable, value = run.batch_size.split("=")
    settings = json.loads(run.shape) | {variable: int(value), "mode": mode}
    settings["dtype"] = _LIGER_TYPES.get(settings.get("dtype", "torch.float32"), torch.float32)
    if name not in _LIGER:
        raise Unknown(f"{name} asks for values: how many tokens each expert gets")
    make_module, start = _LIGER[name]

    def build() -> Loop:
        with torch.device("meta"):
            modules = [make_module(settings).to(settings["dtype"]) for _ in range(_LIGER_COPIES.get(name, 1))]
        return _ModuleLoop(nn.ModuleList(modules), settings, start)

    return Program(build, num_steps=3)


class _ModuleLoop(Loop):
    """One mode of a module. Its inputs are made in the first iteration, since they are larger than a laptop."""

    def __init__(self, models: nn.ModuleList, settings: Settings, start: Start) -> None:
        self.model, self._settings, self._start = models, settings, start
        self._iterate: Callable[[], object] | None = None

    def __call__(self) -> None:
        if self._iterate is None:
            assert isinstance(self.model, nn.ModuleList)
            self._iterate = self._start(self.model[0], self._settings)
        self._iterate()


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def _llama_mlp(settings: Settings) -> nn.Module:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    names = ("hidden_size", "intermediate_size", "hidden_act")
    made: nn.Module = LlamaMLP(LlamaConfig(**{name: settings[name] for name in names}))
    return made


def _start_mlp(layer: nn.Module, settings: Settings) -> Callable[[], object]:
    batch = settings.get("B") or settings["bsz"]
    x = _leaf(batch, settings["T"], settings["hidden_size"], dtype=settings["dtype"])
    if settings["mode"] == "backward":
        given, y = torch.randn_like(x), layer(x)
        return lambda: y.backward(given, retain_graph=True)

    def full() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return full


def _start_cross_entropy(module: nn.Module, settings: Settings) -> Callable[[], object]:
    rows = settings["B"] * settings["T"]
    x = _leaf(rows, settings["V"])
    target = torch.zeros(rows, 1, dtype=torch.int64).squeeze(1)
    return lambda: module(x, target).backward()


def _start_norm(*shape: str) -> Callable[[nn.Module, Settings], Callable[[], object]]:
    def start(module: nn.Module, settings: Settings) -> Callable[[], object]:
        x = torch.randn([settings[name] for name in shape], dtype=settings["dtype"])
        given = torch.randn_like(x)
        x.requires_grad_(True)
        return lambda: module(x).backward(given, retain_graph=True)

    return start


class _AddNorm(nn.Module):
    """`NaiveAddRMSNorm` of that benchmark."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        residual = residual.to(torch.float32)
        hidden = hidden + residual
        residual = hidden
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype), residual.to(dtype)


def _start_add_norm(module: nn.Module, settings: Settings) -> Callable[[], object]:
    shape = (settings["M"], settings["H"])
    x, r = torch.randn(shape, dtype=settings["dtype"]), torch.randn(shape, dtype=settings["dtype"])
    given = torch.randn_like(x), torch.randn_like(r)
    x.requires_grad_(True)
    r.requires_grad_(True)

    def full() -> None:
        y, s = module(x, r)
        torch.autograd.backward((y, s), given)

    return full


def _start_embedding(module: nn.Module, settings: Settings) -> Callable[[], object]:
    ids = torch.zeros(settings["B"], settings["T"], dtype=torch.int64)

    def full() -> None:
        y = module(ids)
        y.backward(torch.randn_like(y))

    return full


def _start_divergence(is_target_log: bool) -> Callable[[nn.Module, Settings], Callable[[], object]]:
    def start(module: nn.Module, settings: Settings) -> Callable[[], object]:
        rows = settings["B"] * settings["T"]
        x = _leaf(rows, settings["V"]).log_softmax(dim=-1)
        logits = torch.randn(rows, settings["V"])
        target = logits.log_softmax(dim=-1) if is_target_log else logits.softmax(dim=-1)
        del logits

        def full() -> None:
            y = module(x, target)
            y.backward(retain_graph=True)

        return full

    return start


class _Jsd(nn.Module):
    """`TorchJSD` of that benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.kl = nn.KLDivLoss(reduction="batchmean", log_target=True)

    def forward(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
        m = 0.5 * (torch.exp(log_p) + torch.exp(log_q))
        log_m = torch.log(m)
        return 0.5 * (self.kl(log_m, log_p) + self.kl(log_m, log_q))


def _start_softmax(module: nn.Module, settings: Settings) -> Callable[[], object]:
    x = _leaf(settings["N"], dtype=settings["dtype"])  # one axis only, as that script had it then

    def full() -> None:
        y = module(x)
        y.backward(torch.ones_like(y), retain_graph=True)

    return full


def _rotary(settings: Settings) -> nn.Module:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    heads = settings["num_q_heads"]
    made: nn.Module = LlamaRotaryEmbedding(LlamaConfig(hidden_size=settings["H"], num_attention_heads=heads))
    return made


def _start_rope(module: nn.Module, settings: Settings) -> Callable[[], object]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    length, width = settings["seq_len"], settings["H"] // settings["num_q_heads"]
    q = _leaf(1, length, settings["num_q_heads"], width, dtype=settings["dtype"]).transpose(1, 2)
    k = _leaf(1, length, settings["num_kv_heads"], width, dtype=settings["dtype"]).transpose(1, 2)
    given = torch.randn_like(q), torch.randn_like(k)
    positions = torch.zeros(length, dtype=torch.int64).unsqueeze(0)
    cos, sin = module(k, positions)

    def full() -> None:
        q_out, k_out = apply_rotary_pos_emb(q, k, cos, sin, positions)
        torch.autograd.grad((q_out, k_out), (q, k), given, allow_unused=True, retain_graph=True)

    return full


class _Distillation(nn.Module):
    """`HFDistillationLoss` of that project's tests, with one of two soft losses."""

    def __init__(self, settings: Settings, soft_loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.student = nn.Linear(settings["H"] // 2, settings["V"], bias=settings["bias"])
        self.teacher = nn.Linear(settings["H"], settings["V"], bias=settings["bias"])
        self.soft_loss = soft_loss

    def forward(self, student: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
        student_logits, teacher_logits, hard_loss = self._both(student, teacher, target)
        student_logits /= 1.0
        teacher_logits /= 1.0
        soft_loss = self.soft_loss(student_logits, teacher_logits)
        return 0.5 * hard_loss + 0.5 * soft_loss

    def _both(self, student: Tensor, teacher: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        student_outputs = student @ self.student.weight.t()
        with torch.no_grad():
            teacher_outputs = teacher @ self.teacher.weight.t()
        student_logits = student_outputs.view(student.shape[0], -1).float()
        teacher_logits = teacher_outputs.view(teacher.shape[0], -1).float()
        hard_loss = F.cross_entropy(student_logits.view(-1, student_logits.shape[-1]), target.view(-1))
        return student_logits, teacher_logits, hard_loss


def _cosine(student: Tensor, teacher: Tensor) -> Tensor:
    student_norm = F.normalize(student, p=2, dim=-1)
    teacher_norm = F.normalize(teacher, p=2, dim=-1)
    similarity = F.cosine_similarity(student_norm, teacher_norm, dim=-1)
    loss = 1.0 * (1 - similarity)
    return loss.mean()


def _jsd_of_logits(student: Tensor, teacher: Tensor) -> Tensor:
    student_log, teacher_log = F.log_softmax(student, dim=-1), F.log_softmax(teacher, dim=-1)
    mean = 0.5 * student_log.exp() + 0.5 * teacher_log.exp()
    log_mean = mean.log()
    student_kl = F.kl_div(log_mean, student_log, reduction="batchmean", log_target=True)
    teacher_kl = F.kl_div(log_mean, teacher_log, reduction="batchmean", log_target=True)
    return 0.5 * teacher_kl + 0.5 * student_kl


def _start_distillation(module: nn.Module, settings: Settings) -> Callable[[], object]:
    rows, width, dtype = settings["BT"], settings["H"], settings["dtype"]
    start = torch.rand(rows, width // 2, dtype=dtype)
    theirs = start.detach().clone().requires_grad_(True)
    student = start.detach().clone().requires_grad_(True)
    teacher = torch.rand(rows, width, dtype=dtype)
    target = torch.zeros(rows, dtype=torch.int64)
    kept = (start, theirs)

    def full() -> None:
        y = module(student, teacher, target)
        y.backward()
        assert kept

    return full


_LIGER: dict[str, tuple[Callable[[Settings], nn.Module], Start]] = {
    "cross_entropy": (lambda _: nn.CrossEntropyLoss(), _start_cross_entropy),
    "swiglu": (_llama_mlp, _start_mlp),
    "geglu": (_llama_mlp, _start_mlp),
    "layer_norm": (lambda settings: nn.LayerNorm(settings["N"]), _start_norm("M", "N")),
    "group_norm": (
        lambda settings: nn.GroupNorm(settings["C"] // settings["channels_per_group"], settings["C"]),
        _start_norm("M", "C", "H"),
    ),
    "fused_add_rms_norm": (lambda settings: _AddNorm(settings["H"], settings["eps"]), _start_add_norm),
    "embedding": (lambda settings: nn.Embedding(settings["V"], settings["D"]), _start_embedding),
    "kl_div": (lambda _: nn.KLDivLoss(reduction="batchmean"), _start_divergence(False)),
    "jsd": (lambda _: _Jsd(), _start_divergence(True)),
    "softmax": (lambda _: nn.Softmax(dim=-1), _start_softmax),
    "rope": (_rotary, _start_rope),
    "distill_cosine_loss": (lambda settings: _Distillation(settings, _cosine), _start_distillation),
    "distill_jsd_loss": (lambda settings: _Distillation(settings, _jsd_of_logits), _start_distillation),
}
_LIGER_COPIES = {
    "layer_norm": 2, "group_norm": 2, "fused_add_rms_norm": 4, "embedding": 2, "distill_cosine_loss": 2,
    "distill_jsd_loss": 2,
}  # fmt: skip
"""The modules of all contenders are built before one of them runs; so many have parameters like the one that does."""
