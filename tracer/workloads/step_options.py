"""Options for training a plain module; read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tracer.errors import UserModelError, WrongValueError

Amp = Literal["off", "bfloat16", "float16"]
Loss = Literal["auto", "mean-square", "cross-entropy"]


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options for training a plain module."""

    inputs: Sequence[str] = ()  # What it is called with, as `--input` has it
    batch_size: int = 8  # Samples of a batch
    # Optimizer of `torch.optim`, by name, with arguments: `sgd:lr=0.1,momentum=0.9`; or `none`.
    optimizer: str = "adamw"
    loss: Loss = "auto"  # From the output to a number
    amp: Amp = "off"  # The dtype of mixed precision
    checkpoint: bool = False  # Whether repeated blocks compute their activations again in backward
    inference: bool = False  # Whether there is only a forward pass
    seed: int = 0  # Seed of the inputs

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise WrongValueError(f"The batch size must be at least 1, not {self.batch_size}.", hint="Use 1 or more.")
        if self.amp not in get_args(Amp):
            raise WrongValueError(f"There is no mixed precision {self.amp}.", hint=f"Use {', '.join(get_args(Amp))}.")

    def check_inference(self) -> None:
        """Make sure that nothing is asked of a backward pass which there is not."""
        if self.inference and self.checkpoint:
            raise UserModelError(
                "--checkpoint has no meaning in --inference, which has no backward.", hint="Leave one out."
            )

    def given(self) -> list[str]:
        """The options that only a plain module can follow and that were given."""
        names = ("inputs", "optimizer", "loss", "amp", "checkpoint", "inference")
        words = {"inputs": "input"}
        options = [
            name for name in names if getattr(self, name) != getattr(DEFAULTS, name) and getattr(self, name) != []
        ]
        return [f"--{words.get(name, name)}" for name in options]


DEFAULTS: Final = StepOptions()
