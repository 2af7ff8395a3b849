"""Recurrent layers as cuDNN runs them: one operator for all layers and steps, with one reserve for its backward.

Source: _cudnn_rnn, _cudnn_rnn_backward_input and _cudnn_rnn_backward_weight in aten/src/ATen/native/cudnn/RNN.cpp;
their autocast in aten/src/ATen/cudnn/AutocastRNN.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture.torch_private import torch_dispatch, torch_fake
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
    """Options of one call of recurrent layers, the scratch that it takes, and the reserve that it keeps for backward.

    cuDNN does not publish the sizes. For 966 of 1,084 layers at random these are what cuDNN 9.19 said on an H100 to
    0.1 %, for the others to 6.4 %; `dnn.c` of the null GPU has the same, and benchmarks/h100_answers compares both.
    """

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


class _Recurrence(torch.autograd.Function):
    """Output with time as its first axis, last hidden state, last cell state."""

    @staticmethod
    def forward(
        ctx: Any,
        gpu: Gpu,
        layers: Layers,
        batch_sizes: Tensor | None,
        x: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        *weights: Tensor,
    ) -> Any:
        in_order = layers.time_first(x).contiguous()
        batch = Batch.of(in_order, batch_sizes)
        output = x.new_empty((*in_order.shape[:-1], layers.num_directions * layers.projected_size))
        last = hidden.new_empty(hidden.shape), cell.new_empty(cell.shape) if cell is not None else None
        scratch = _scratch(gpu, layers, batch, x, in_backward=False)
        if layers.is_training:
            num_bytes = layers.reserve_bytes(batch, x.element_size())
            reserve = torch.empty(num_bytes, dtype=torch.uint8, device=x.device)
            ctx.gpu, ctx.layers, ctx.batch = gpu, layers, batch
            ctx.save_for_backward(x, hidden, cell, output, reserve, *weights)
        del scratch
        return output, *last

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, hidden, cell, _, _, *weights = ctx.saved_tensors
        in_order, of_output = ctx.layers.time_first(x).contiguous(), gradients[0].contiguous()
        of_x, of_hidden = torch.empty_like(in_order), torch.empty_like(hidden)
        of_cell = torch.empty_like(cell) if cell is not None else None
        scratch = _scratch(ctx.gpu, ctx.layers, ctx.batch, x, in_backward=True)
        del in_order, of_output, scratch
        in_order = ctx.layers.time_first(x).contiguous()
        # One buffer, of which every weight's gradient is a part, or is copied where it has places for biases beside.
        flat = torch.zeros(ctx.layers.weight_values(weights), dtype=x.dtype, device=x.device)
        scratch = _scratch(ctx.gpu, ctx.layers, ctx.batch, x, in_backward=True)
        of_weights = _parts(flat, weights)
        if not ctx.layers.has_bias:
            of_weights = [part.clone() for part in of_weights]
        del in_order, scratch
        return None, None, None, ctx.layers.time_first(of_x), of_hidden, of_cell, *of_weights


def _scratch(gpu: Gpu, layers: Layers, batch: Batch, x: Tensor, *, in_backward: bool) -> Tensor:
    is_persistent = layers.is_persistent(batch, x.dtype, gpu, in_backward=in_backward)
    num_bytes = layers.workspace_bytes(batch, x.element_size(), is_persistent=is_persistent)
    return torch.empty(num_bytes, dtype=torch.uint8, device=x.device)


def recurrence(kind: str) -> Callable[[Callable[..., Any], Gpu], Callable[..., Any]]:
    """A replacement of `torch._VF.lstm` and its like.

    Args:
        kind: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
    """

    def replaced(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            x = args[0]
            is_packed = isinstance(args[3], list | tuple)
            state, weights = (args[2], args[3]) if is_packed else (args[1], args[2])
            if not torch_fake.is_fake(weights[0]) or not torch.backends.cudnn.enabled:
                return on_cpu(*args)
            # Behind the weights: whether they have biases, layers, dropout, training, both directions.
            has_bias, num_layers, dropout, is_training, both = args[4:9] if is_packed else args[3:8]
            hidden, cell = state if kind == "lstm" else (state, None)
            layers = Layers(
                kind,
                num_layers=num_layers,
                num_directions=2 if both else 1,
                hidden_size=weights[1].shape[0] // GATES[kind],
                projected_size=hidden.shape[-1],
                is_training=is_training,
                batch_first=not is_packed and args[8],
                has_bias=has_bias,
                has_dropout=dropout > 0,
            )
            x, hidden, cell, weights = _in_16_bits(layers, x, hidden, cell, list(weights))
            if is_training and dropout > 0:
                _keep_random_state(gpu, x)
            output, hidden, cell = _Recurrence.apply(
                gpu, layers, args[1] if is_packed else None, x, hidden.contiguous(), cell, *weights
            )
            output = layers.time_first(output)
            return (output, hidden) if cell is None else (output, hidden, cell)

        return call

    return replaced


_CUDNN_TYPES = {torch.float16, torch.float32, torch.float64}


def flatten_weights(module: nn.Module) -> list[str]:
    """Put the weights of a recurrent layer into one storage; their names, or none where torch would not.

    Source: RNNBase.flatten_parameters in torch/nn/modules/rnn.py; CUDNN_TENSOR_DTYPES in torch/backends/cudnn.
    """
    if not isinstance(module, nn.RNNBase) or not torch.backends.cudnn.enabled:
        return []
    weights = dict(module.named_parameters(recurse=False))
    if len(weights) < sum(map(len, module.all_weights)) or not _can_be_one(list(weights.values())):
        return []
    flat = next(iter(weights.values())).new_empty(_layers_of(module).weight_values(list(weights.values())))
    for weight, part in zip(weights.values(), _parts(flat, list(weights.values())), strict=True):
        weight.data = part
    return list(weights)


def _can_be_one(weights: list[nn.Parameter]) -> bool:
    """Whether all are of one type that cuDNN has."""
    types = {weight.dtype for weight in weights}
    return len(types) == 1 and types <= _CUDNN_TYPES


def _layers_of(module: nn.RNNBase) -> Layers:
    return Layers(
        module.mode.lower(),
        num_layers=module.num_layers,
        num_directions=2 if module.bidirectional else 1,
        hidden_size=module.hidden_size,
        projected_size=module.proj_size or module.hidden_size,
        is_training=module.training,
        batch_first=module.batch_first,
        has_bias=module.bias,
        has_dropout=module.dropout > 0,
    )


def _keep_random_state(gpu: Gpu, x: Tensor) -> None:
    """Allocate the state of dropout between layers: once per device, by the first call, for good."""
    if _RANDOM_STATE not in gpu.memory:
        num_bytes = gpu.card.num_sms * _THREADS_OF_RANDOM_STATE * _BYTES_OF_A_GENERATOR
        gpu.memory[_RANDOM_STATE] = torch.empty(num_bytes, dtype=torch.uint8, device=x.device)


# Source: get_dropout_state in aten/src/ATen/native/cudnn/RNN.cpp. What cuDNN 9.19 asked for there on an H100, as the
# null GPU answers: a state of cuRAND's for 1,024 threads of each multiprocessor.
_RANDOM_STATE = "cudnn-dropout-state"
_THREADS_OF_RANDOM_STATE = 1024
_BYTES_OF_A_GENERATOR = 48


def _parts(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    sizes = [weight.numel() for weight in weights]
    pieces = torch.split(flat[: sum(sizes)], sizes)
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]


class _CastWeights(torch.autograd.Function):
    """Weights in another type, as parts of one buffer."""

    @staticmethod
    def forward(ctx: Any, layers: Layers, to: torch.dtype, *weights: Tensor) -> Any:
        ctx.dtypes = [weight.dtype for weight in weights]
        flat = torch.zeros(layers.weight_values(weights), dtype=to, device=weights[0].device)
        return tuple(_parts(flat, weights))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cast = [
            gradient if gradient is None else gradient.to(to)
            for gradient, to in zip(gradients, ctx.dtypes, strict=True)
        ]
        return None, None, *cast


def _in_16_bits(layers: Layers, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: list[Tensor]) -> Any:
    """In mixed precision all of it is cast, anew each time; the weights together. It is float16, with bfloat16 too.

    Source: _cudnn_rnn_cast_reflatten in aten/src/ATen/cudnn/AutocastRNN.cpp, which casts to at::kHalf.
    """
    if not torch.is_autocast_enabled("cpu"):
        return x, hidden, cell, weights
    to = torch.float16
    with torch_dispatch.below_autocast():
        cast = list(_CastWeights.apply(layers, to, *weights))
        return x.to(to), hidden.to(to), cell.to(to) if cell is not None else None, cast
