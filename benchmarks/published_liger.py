"""Liger's modules, as its own benchmarks run them: single ones, forward and backward again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.published_loop import Loop

TYPES = {"torch.bfloat16": torch.bfloat16, "torch.float32": torch.float32}
Settings = dict[str, Any]
Start = Callable[[Any, Settings], Callable[[], object]]
"""From the module and its settings to what one iteration does; makes the inputs."""


class ModuleLoop(Loop):
    """One mode of a module. Its inputs are made in the first iteration, since they are larger than a laptop."""

    def __init__(self, models: nn.ModuleList, settings: Settings, start: Start) -> None:
        self.model, self._settings, self._start = models, settings, start
        self._iterate: Callable[[], object] | None = None

    def __call__(self) -> None:
        """Run one iteration."""
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


MODULES: dict[str, tuple[Callable[[Settings], nn.Module], Start]] = {
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
COPIES = {
    "layer_norm": 2, "group_norm": 2, "fused_add_rms_norm": 4, "embedding": 2, "distill_cosine_loss": 2,
    "distill_jsd_loss": 2,
}  # fmt: skip
"""The modules of all contenders are built before one of them runs; so many have parameters like the one that does."""
