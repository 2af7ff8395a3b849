"""torch's names in a recording: names of spans and operators, and files of its own functions.

None of them is documented. They are apart from `torch_private` because an analysis needs the names, and not torch.

Source: torch/profiler/profiler.py (steps), torch/optim/optimizer.py (optimizers), torch/csrc/autograd/engine.cpp (the
engine), torch/csrc/autograd/functions/accumulate_grad.h; unchanged from torch 2.11 to 2.15.
torch/distributed/fsdp, torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp (collectives).
"""

from __future__ import annotations

import re

# Spans.
STEP_PREFIX = "ProfilerStep#"
ZERO_GRAD_PREFIX = "Optimizer.zero_grad#"
OPTIMIZER_PREFIXES = ("Optimizer.step#", ZERO_GRAD_PREFIX)

# Operators: those of the autograd engine have the node's name behind this.
ENGINE_PREFIX = "autograd::engine::evaluate_function: "
_NODES_PREFIX = "torch::autograd::"
ACCUMULATE_GRAD = f"{_NODES_PREFIX}AccumulateGrad"
_NODE = re.compile(r"^\w+Backward\d*$")

# AOTAutograd's function, forward and backward, and what runs a function that was compiled, graphs and what is between.
COMPILED_FUNCTION = "CompiledFunction"
COMPILED_REGIONS = (COMPILED_FUNCTION, "Torch-Compiled Region")
# The span around a generated graph.
COMPILED_CALL = "## Call CompiledFxGraph"
# Modules that torch.compile puts around and into a model.
COMPILERS_MODULES = ("GraphModule_", "OptimizedModule_")

# Operators and nodes of backward whose first call in a thread has a library take memory of a GPU, beside torch's
# allocator: its handle and its kernels.
LIBRARY_CALLS = {
    "cuBLAS": re.compile(
        r"aten::(linear|matmul|mm|bmm|addmm|baddbmm|addbmm|einsum|mv|addmv|dot)|(Addmm|Mm|Bmm|Baddbmm|Linear)Backward0"
    ),
    "cuDNN": re.compile(
        r"aten::(conv(_transpose)?[123]d|convolution|lstm|gru|rnn_tanh|rnn_relu)|(Convolution|CudnnRnn)Backward0"
    ),
    "cuFFT": re.compile(r"aten::(fft_\w+|stft|istft)|Fft\w+Backward0"),
    "cuSOLVER": re.compile(r"aten::(linalg_(?!vector_norm)\w+|cholesky\w*|geqrf|ormqr)"),
    "NCCL": re.compile(r"(c10d|_c10d_functional|nccl)::?\w+"),
    "compiled code": re.compile(rf"({'|'.join(COMPILED_REGIONS)}).*"),
}

# Methods that every operation on a class of tensors goes through: their line says nothing of the operation.
OVERRIDES = ("__torch_function__", "__torch_dispatch__")

# Files of torch's own functions, as the profiler shortens their paths.
_AUTOGRAD_FILE = "torch/autograd/__init__.py"
# The function through which every backward pass is asked for: its file and its name.
BACKWARD_FUNCTION = (_AUTOGRAD_FILE, "backward")
_LOADER_FILE = "torch/utils/data/dataloader.py"
_DECORATORS_FILE = "torch/utils/_contextlib.py"
_OPTIMIZERS_FOLDER = "torch/optim/"
# The function that torch puts around every optimizer's `step`.
STEP_WRAPPER = "wrapper"


# Functions of FSDP2, FSDP, pipelines and DeepSpeed's ZeRO that make the buffers of what is sent, themselves or in what
# they call; "" is any.
_COLLECTIVES = {
    "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py": ("",),
    "torch/distributed/fsdp/_fully_shard/_fsdp_param.py": (
        "all_gather_inputs",
        "alloc_all_gather_outputs",
        "init_all_gather_outputs",
        "init_unsharded_param",
        "alloc_storage",
    ),
    "torch/distributed/_composable/fsdp/_fsdp_collectives.py": ("",),
    "torch/distributed/fsdp/_flat_param.py": (
        "_all_gather_flat_param",
        "_alloc_padded_unsharded_flat_param",
        "_use_low_precision_shard",
    ),
    "torch/distributed/fsdp/_runtime_utils.py": ("_reduce_grad", "_reduce_grad_no_shard"),
    "torch/distributed/pipelining/_recv_buffers.py": ("allocate_buffer",),
    "torch/distributed/pipelining/stage.py": ("_create_act_recv_info", "_create_grad_recv_info"),
    "deepspeed/runtime/zero/stage_1_and_2.py": ("setup_buckets",),
    "deepspeed/runtime/zero/partition_parameters.py": (
        "_all_gather_dtype",
        "_all_gather_coalesced",
        "_all_gather_sequential",
    ),
}
# Those of DDP, whose buckets C++ makes: no Python is between.
_DDP_FILE, _DDP_FUNCTIONS = "torch/nn/parallel/distributed.py", ("_ddp_init_helper", "_pre_forward")
# What DDP's reducer calls its own work, which fills and reads its buckets; and operators that are given the buffers of
# collectives, or fill them.
REDUCER_PREFIXES = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")
COLLECTIVE_PREFIXES = ("c10d::", *REDUCER_PREFIXES)
COLLECTIVE_OPERATORS = (*COLLECTIVE_PREFIXES, "_c10d_functional::", "fsdp::")
# Recurrent layers as Python calls them, and the name of bytes among a tensor's types.
RECURRENT_OPERATORS = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
BYTES = "uint8"
# Products of matrices: on a GPU what one allocates and never shows as a tensor is cuBLAS's workspace.
MATRIX_OPERATORS = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_addmm_activation", "_scaled_mm", "_int_mm")
)
# What FSDP2 puts before the class of a module that it was given.
SHARDED_MODULES = "FSDP"
# FSDP2's spans end in the dotted names of the modules whose parameters are gathered or reduced; the root has none.
_OF_MODULES = re.compile(r"^FSDP::\w+(?: \((.+?)\))?(?: \[pg=\d+\])?$")


def node_name(operator: str) -> str:
    """An operator's name; of the engine's work on a node, the node's."""
    return operator.removeprefix(ENGINE_PREFIX)


def is_backward_node(operator: str) -> bool:
    """True if autograd gives its nodes such a name, like `AddmmBackward0`: they run inside each other too."""
    return operator.startswith(_NODES_PREFIX) or _NODE.search(operator) is not None


def is_accumulate_grad(operator: str) -> bool:
    """True if an operator is the node that writes `.grad`, or the engine's work on it."""
    return node_name(operator) == ACCUMULATE_GRAD


def is_asking_for_backward(file: str, function: str) -> bool:
    """True if a function is `torch.autograd.backward` or `grad`."""
    return function in ("backward", "grad") and file.endswith(_AUTOGRAD_FILE)


def is_asking_a_loader(file: str, function: str) -> bool:
    """True if a frame is a DataLoader's `__next__`, which returns the next batch."""
    return function == "__next__" and file.endswith(_LOADER_FILE)


def is_an_optimizers(file: str) -> bool:
    """True if a file contains torch's optimizers."""
    return _OPTIMIZERS_FOLDER in file


def is_a_decorators(file: str) -> bool:
    """True if a file contains the wrapper that `torch.no_grad` and similar decorators put around a function."""
    return _DECORATORS_FILE in file


def makes_collectives_buffers(file: str, function: str) -> bool:
    """True if a function allocates the buffers of collectives, itself or in a function that it calls."""
    functions = next((names for path, names in _COLLECTIVES.items() if file.endswith(path)), ())
    return "" in functions or function in functions


def makes_buckets(file: str, function: str) -> bool:
    """True if the blocks that a function allocates itself, not in Python functions that it calls, are DDP's buckets."""
    return function in _DDP_FUNCTIONS and file.endswith(_DDP_FILE)


def modules_of_collective(span: str) -> tuple[str, ...] | None:
    """Dotted names of the modules whose parameters a span of FSDP2 is about, "" for the root; None for other spans."""
    match = _OF_MODULES.match(span)
    return tuple((match.group(1) or "").split(", ")) if match is not None else None


def step_words(name: str) -> str:
    """A step's name for people, who count from 1: `step 3` for `ProfilerStep#2`."""
    number = name.removeprefix(STEP_PREFIX)
    return f"step {int(number) + 1:,}" if number.isdecimal() else name
