"""Scratch of each call of cuDNN's recurrent layers, and the reserve that they keep for backward.

cuDNN does not publish it. For 966 of 1,084 layers at random this is what cuDNN 9.19 said on an H100 to 0.1 %, for the
others to 6.4 %; `dnn.c` of the null GPU has the same. `python -m benchmarks.h100_answers` compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tracer.rehearsal.rule import Gpu
from tracer.units import MIB


class _Cell(NamedTuple):
    """Memory that a kind of cell needs, counted in vectors of the hidden state."""

    gates: int
    kept: int  # For backward: the gates, and the LSTM's cell state or what the GRU's candidate is made of
    # Scratch for each layer and sample
    forward_one_way: int
    forward_both_ways: int
    backward_both_ways: int
    copied: int  # In each direction, of a padded batch
    of_persistent: int  # For each step, where the weights stay in registers


_OF_RNN = _Cell(1, 1, 1, 6, 6, 2, 9)
_CELLS = {
    "lstm": _Cell(4, 5, 6, 16, 10, 4, 12),
    "gru": _Cell(3, 6, 3, 10, 6, 2, 14),
    "rnn_tanh": _OF_RNN,
    "rnn_relu": _OF_RNN,
}
GATES = {kind: cell.gates for kind, cell in _CELLS.items()}
_STEPS_AT_ONCE = 256
"""The steps whose gates cuDNN multiplies at once in one direction."""
_MULTIPLICATION_BYTES = 8 * MIB
"""Of the workspace, for each layer and direction: cuBLASLt's."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as cuDNN's descriptor has it."""

    num_samples: int
    longest: int  # Steps of the longest sample
    num_steps: int  # Of all samples together
    input_size: int
    is_packed: bool

    @classmethod
    def of(cls, in_order: Tensor, batch_sizes: Tensor | None) -> Batch:
        """The batch of an input [T, B, I], or of a packed one [sum of steps, I] with samples by step."""
        if batch_sizes is None:
            steps, samples = in_order.shape[:2]
            return cls(samples, steps, steps * samples, in_order.shape[-1], is_packed=False)
        return cls(int(batch_sizes[0]), len(batch_sizes), in_order.shape[0], in_order.shape[-1], is_packed=True)


@dataclass(frozen=True, slots=True)
class Layers:
    """Options of one call of recurrent layers."""

    kind: str
    num_layers: int
    num_directions: int
    hidden_size: int
    projected_size: int
    is_training: bool
    batch_first: bool
    has_bias: bool
    has_dropout: bool

    def time_first(self, x: Tensor) -> Tensor:
        """With time as the first axis, or back."""
        return x.transpose(0, 1) if self.batch_first else x

    def weight_values(self, weights: Sequence[Tensor]) -> int:
        """Values in cuDNN's buffer of all weights, which has places for biases even without biases."""
        biases = 0 if self.has_bias else 2 * self.num_layers * self.num_directions * GATES[self.kind] * self.hidden_size
        numel: int = sum(weight.numel() for weight in weights)
        return numel + biases

    def reserve_bytes(self, batch: Batch, item_bytes: int) -> int:
        """Kept for backward: of all layers their values; between layers, their output and what dropout keeps of it."""
        directions, between = self.num_directions, self.num_layers - 1
        kept = _CELLS[self.kind].kept * self.hidden_size
        if self.projected_size != self.hidden_size:
            kept += self.hidden_size + self.projected_size
        values = batch.num_steps * directions * (self.num_layers * kept + between * self.hidden_size)
        padded = batch.num_samples * batch.longest * directions * self.projected_size
        of_dropout = between * directions * ((padded + 7) // 8) if self.has_dropout else 0
        return values * item_bytes + of_dropout + 256

    def workspace_bytes(self, batch: Batch, item_bytes: int, *, is_persistent: bool = False) -> int:
        """Scratch of each call."""
        cell, directions, layers = _CELLS[self.kind], self.num_directions, self.num_layers
        sample, of_hidden = batch.num_samples * self.hidden_size, batch.num_steps * self.hidden_size
        of_input = batch.num_steps * batch.input_size
        widest = max(of_hidden, of_input)
        if directions == 2:
            forward = (2 * cell.gates + 4) * of_hidden + layers * cell.forward_both_ways * sample
            backward = (4 if layers > 1 else 2) * of_hidden + 4 * widest + layers * cell.backward_both_ways * sample
        else:
            at_once = of_hidden if is_persistent else min(_STEPS_AT_ONCE * sample, of_hidden)
            forward = cell.gates * at_once + layers * cell.forward_one_way * sample
            forward += of_hidden if self.has_dropout else 0
            at_once = min(of_hidden, (8 + 9 * layers) * sample) if layers > 1 else of_hidden
            backward = at_once + widest + (2 * layers + 1 if self.kind == "lstm" else int(layers < 2)) * sample
        if not batch.is_packed:  # padded ones are copied, in backward their gradients too
            copies = directions * of_hidden + of_input + layers * directions * cell.copied * sample
            forward, backward = forward + copies, backward + 2 * copies
        both = max(forward, backward)
        if is_persistent:
            forward += 4 * cell.gates * of_hidden
            both = max(forward, both + cell.of_persistent * of_hidden)
        values = both if self.is_training else forward
        num_bytes = (self.matrix_values(batch.input_size) + values) * item_bytes
        return layers * directions * _MULTIPLICATION_BYTES + num_bytes

    def is_persistent(self, batch: Batch, dtype: torch.dtype, gpu: Gpu, *, in_backward: bool) -> bool:
        """Whether torch asks for kernels that keep the weights in registers, and cuDNN has them.

        Source:
            get_algo, use_rnn_persist_small_h and use_persist_device_heuristics in
            aten/src/ATen/native/cudnn/RNN.cpp. Of bfloat16 cuDNN's answers are those of its other kernels.
        """
        is_plain = self.kind.startswith("rnn")
        if batch.is_packed or self.projected_size != self.hidden_size or dtype not in (torch.float16, torch.float32):
            return False
        most = (256 if is_plain else 128) if in_backward else (384 if is_plain else 192)
        if self.hidden_size <= most:
            return True
        is_one = self.num_layers == self.num_directions == 1 and self.kind != "gru" and dtype == torch.float16
        of_128 = self.hidden_size <= 1024 and self.hidden_size % 128 == batch.input_size % 128 == 0
        is_known = gpu.card.capability >= (8, 0) and gpu.card.capability[1] != 6 and gpu.card.num_sms >= 98
        few = batch.num_samples % 8 == 0 and batch.num_samples <= 128
        return (
            is_one
            and of_128
            and is_known
            and few
            and (not is_plain or batch.num_samples < 96 or self.hidden_size < 896)
        )

    def matrix_values(self, input_size: int) -> int:
        """Values of the weights without biases."""
        rows, output = GATES[self.kind] * self.hidden_size, self.projected_size
        projections = output * self.hidden_size if output != self.hidden_size else 0
        inputs = [input_size, *[self.num_directions * output] * (self.num_layers - 1)]
        return self.num_directions * sum(rows * (columns + output) + projections for columns in inputs)
