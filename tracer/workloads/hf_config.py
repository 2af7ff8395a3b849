"""A transformers model from its configuration alone: nothing is downloaded, and no number is held."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracer.errors import UserModelError, WrongValueError, first_line
from tracer.workloads.factory import parse_arguments
from tracer.workloads.module_steps import ModuleWorkload, own_loss
from tracer.workloads.step_options import StepOptions
from tracer.workloads.user_model import as_workload
from tracer.workloads.workload import default_dtype, give_memory

__tracebackhide__ = True  # what raises here is to be looked for in the configuration

_TOKENS = 512


def build_hf_workload(
    path: Path, *, device: torch.device, model_args: Sequence[str], options: StepOptions, tokens: int | None = None
) -> Any:
    """The training, or inference, of a model that a configuration describes, on the meta device.

    Without inputs, it is given 512 tokens a sample, or as many as it has positions, and as many labels.

    Args:
        model_args: Values that replace those of the configuration, as `key=value`; `dtype=bfloat16` is the weights'.
        tokens: Tokens in a sample. In inference, text of that many tokens is generated: its keys and values are kept.
    """
    config = _config(path, model_args)
    model = _model(config)
    if tokens is not None:
        most = getattr(_of_text(config), "max_position_embeddings", None)
        least = _NUM_GENERATED + 1 if options.inference else 1
        if options.inputs:
            raise WrongValueError("--tokens and --input both say how long a sample is.", hint="Leave one out.")
        if tokens < least:
            raise WrongValueError(f"--tokens {tokens} is too few.", hint=f"Use {least} or more.")
        if most is not None and tokens > most:
            raise UserModelError(
                f"--tokens {tokens} is more than the {most} positions of the model.",
                hint=f"Use at most {most}, or --model-arg max_position_embeddings={tokens}.",
            )
    if tokens is not None and options.inference:
        return _generation(model, tokens, device, options)
    if not options.inputs:
        options = replace(options, inputs=_inputs(config, tokens, is_training=not options.inference))
    return as_workload(model, device=device, options=options, without_memory=True)


_NUM_GENERATED = 8
_ONLY_LAST = ("logits_to_keep", "num_logits_to_keep")  # transformers from 4.50 on, and before


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Generation(ModuleWorkload):
    """Text that is generated, as the forward pass of a step without a loss: tokens are made in it."""

    generate: Callable[[], None]

    def forward(self, batch: object) -> None:
        """Generate the text."""
        self.generate()

    def copy(self) -> None:  # type: ignore[override]
        """Return None: a generation is not copied, and its phases are not timed."""


def _generation(model: nn.Module, tokens: int, device: torch.device, options: StepOptions) -> _Generation:
    """A prompt in one pass, then the last few tokens one by one, each with the keys and values of all before it.

    So the longest prompt and the fullest cache are both in it. As `generate` does, only the last token's scores are
    asked for.
    """
    options.check_inference()
    if device.type != "cpu":
        give_memory(model, device)
    known = inspect.signature(model.forward).parameters
    last = dict.fromkeys([name for name in _ONLY_LAST if name in known][:1], 1)
    model.eval()

    def ids(length: int) -> torch.Tensor:
        return torch.zeros(options.batch_size, length, dtype=torch.int64, device=device)

    def step() -> None:
        dtype = None if options.amp == "off" else getattr(torch, options.amp)
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype is not None):
            cache = model(input_ids=ids(tokens - _NUM_GENERATED), use_cache=True, **last).past_key_values
            for _ in range(_NUM_GENERATED):
                cache = model(input_ids=ids(1), past_key_values=cache, use_cache=True).past_key_values

    return _Generation(
        model=model,
        optimizer=None,
        next_batch=lambda: ((), {}),
        device=device,
        loss=own_loss,
        inference=True,
        generate=step,
    )


def _of_text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _config(path: Path, model_args: Sequence[str]) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserModelError(f"There is no file {file}.", hint="It is the config.json beside a model's weights.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        kind = values["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserModelError(
            f"{file} is no configuration of a transformers model: {type(error).__name__}: {error}.",
            hint="It is the config.json beside a model's weights.",
        ) from None
    values |= parse_arguments("--model-arg", model_args)
    try:
        transformers = import_module("transformers")
    except ImportError:
        raise UserModelError("--hf-config needs transformers.", hint="Install it beside torch and run again.") from None
    try:
        return transformers.AutoConfig.for_model(**values)
    except ValueError as error:
        raise UserModelError(
            f"This version of transformers knows no {kind}: {first_line(error)}.",
            hint="Install the version that the model needs.",
        ) from error


def _model(config: Any) -> nn.Module:
    """Make a model of the class that the configuration names, or of the one for causal language models."""
    transformers = import_module("transformers")
    names = getattr(config, "architectures", None) or ()
    kind = next((class_ for name in names if (class_ := getattr(transformers, name, None)) is not None), None)
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    try:
        with default_dtype(dtype), torch.device("meta"):
            built: nn.Module = (
                kind(config) if kind is not None else transformers.AutoModelForCausalLM.from_config(config)
            )
        return built
    except ValueError as error:
        raise UserModelError(
            f"No model can be built of it: {first_line(error)}.",
            hint="Name the class in the configuration's architectures.",
        ) from error


def _inputs(config: Any, tokens: int | None, *, is_training: bool) -> tuple[str, ...]:
    text = _of_text(config)
    length = tokens or min(_TOKENS, int(getattr(text, "max_position_embeddings", _TOKENS) or _TOKENS))
    ids = f"{length}:int64:0-{text.vocab_size}"
    return (f"input_ids={ids}", f"labels={ids}") if is_training else (f"input_ids={ids}",)
