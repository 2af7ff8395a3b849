"""What torch calls things in a recording: names of spans and operators, and files of its own functions.

None of them is documented, so that they are private to torch as the parts in `torch_private` are, and stand nowhere
else. They are apart from it because an analysis of a kept recording needs the names, and not torch.

Source: torch/profiler/profiler.py (steps), torch/optim/optimizer.py (optimizers), torch/csrc/autograd/engine.cpp (the
engine), torch/csrc/autograd/functions/accumulate_grad.h; unchanged from torch 2.11 to 2.15.
"""

from __future__ import annotations

# Spans.
STEP_PREFIX = "ProfilerStep#"
ZERO_GRAD_PREFIX = "Optimizer.zero_grad#"
OPTIMIZER_PREFIXES = ("Optimizer.step#", ZERO_GRAD_PREFIX)

# Operators: those of the autograd engine have the node's name behind this.
ENGINE_PREFIX = "autograd::engine::evaluate_function: "
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"

# AOTAutograd's function, forward and backward, and what runs a function that was compiled, graphs and what is between.
COMPILED_FUNCTION = "CompiledFunction"
COMPILED_REGIONS = (COMPILED_FUNCTION, "Torch-Compiled Region")
# The span around a generated graph.
COMPILED_CALL = "## Call CompiledFxGraph"
# Modules that torch.compile puts around and into a model.
COMPILERS_MODULES = ("GraphModule_", "OptimizedModule_")

# Files of torch's own functions, as the profiler shortens their paths.
_AUTOGRAD_FILE = "torch/autograd/__init__.py"
# The function through which every backward pass is asked for: its file and its name.
BACKWARD_FUNCTION = (_AUTOGRAD_FILE, "backward")
_LOADER_FILE = "torch/utils/data/dataloader.py"
_DECORATORS_FILE = "torch/utils/_contextlib.py"
_OPTIMIZERS_FOLDER = "torch/optim/"
# The function that torch puts around every optimizer's `step`.
STEP_WRAPPER = "wrapper"


def node_name(operator: str) -> str:
    """An operator's name; of the engine's work on a node, the node's."""
    return operator.removeprefix(ENGINE_PREFIX)


def is_accumulate_grad(operator: str) -> bool:
    """Whether an operator is the node that writes `.grad`, or the engine's work on it."""
    return node_name(operator) == ACCUMULATE_GRAD


def is_asking_for_backward(file: str, function: str) -> bool:
    """Whether a function is `torch.autograd.backward` or `grad`."""
    return function in ("backward", "grad") and file.endswith(_AUTOGRAD_FILE)


def is_asking_a_loader(file: str, function: str) -> bool:
    """Whether a frame is where a DataLoader is asked for the next batch."""
    return function == "__next__" and file.endswith(_LOADER_FILE)


def is_an_optimizers(file: str) -> bool:
    """Whether a file has torch's optimizers in it."""
    return _OPTIMIZERS_FOLDER in file


def is_a_decorators(file: str) -> bool:
    """Whether a file has the wrapper that `torch.no_grad` and its like put around a function."""
    return _DECORATORS_FILE in file


def step_words(name: str, num_steps: int | None = None) -> str:
    """A step's name for people, who count from 1: `step 3 of 11` for `ProfilerStep#2`.

    Args:
        name: torch's, which counts from 0.
        num_steps: How many have ended, if that is known; nothing is said of it in a step that has not.
    """
    number = name.removeprefix(STEP_PREFIX)
    if not number.isdecimal():
        return name
    has_ended = num_steps is not None and int(number) < num_steps
    return f"step {int(number) + 1:,}" + (f" of {num_steps:,}" if has_ended else "")
