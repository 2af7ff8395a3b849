"""Runs a program on the CPU and writes the history that an allocator would keep, with C++ frames as autograd has them.

Below autograd every operation is seen: in forward with its lines of Python, in backward with the node that the engine
evaluates, whose sequence number says which operation of forward it belongs to. That is the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.snapshot.dumps import Row, block, entry, frame, segment, snapshot

BASE = 1 << 40
Line = tuple[str, int]
_ENGINE = frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0)
_SUM = frame("torch::autograd::InputBuffer::add(unsigned long, at::Tensor&&)", "??", 0)
_HIDDEN = (__file__, "_python_dispatch.py", "contextlib.py")


class AutogradRecorder(TorchDispatchMode):
    """Keeps an entry for each storage that an operation makes.

    Attributes:
        trace: The entries.
        truth: By entry of backward the stack of its operation of forward, empty where that was not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[Row] = []
        self.truth: dict[int, list[Row]] = {}
        self._forward: dict[int, list[Row]] = {}
        self._kept: list[Any] = []
        self._next = BASE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = torch._C._current_autograd_node()
        frames = _python_frames()
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        known = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        operation = func.name().split("::")[1].replace(".", "_")
        own = frame(f"torch::autograd::VariableType::(anonymous namespace)::{operation}(c10::DispatchKeySet)", "??", 0)
        if node is None:
            self._forward.setdefault(number, frames)  # type: ignore[unreachable]
            stack = [own, *frames]
        elif operation.startswith("add_"):  # the engine's own: it adds up what comes to a node from several others
            stack = [own, _SUM, _ENGINE]
        else:
            name = node.name().removeprefix("torch::autograd::")
            scope = "torch::autograd::" if name == "AccumulateGrad" else "torch::autograd::generated::"
            of_python = frames if _is_recomputing(frames) else []
            stack = [own, *of_python, frame(f"{scope}{name}::apply(std::vector<at::Tensor>&&)", "??", 0), _ENGINE]
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage.nbytes():
                known.add(storage._cdata)
                self._kept.append(tensor)  # keeps identities apart; frees do not matter here
                if node is not None:
                    self.truth[len(self.trace)] = self._forward.get(node._sequence_nr(), [])
                self.trace.append(entry("alloc", self._next, storage.nbytes(), time_us=len(self.trace), frames=stack))
                self._next += -(-storage.nbytes() // 512) * 512
        return result

    def snapshot(self) -> dict[str, Any]:
        """What was recorded, all of it in use at the end."""
        blocks = [block(one["addr"], one["size"], frames=one["frames"]) for one in self.trace]
        return snapshot(self.trace, [segment(BASE, self._next - BASE, blocks)])


def record(program: Callable[[], object], *, times: int = 2) -> AutogradRecorder:
    """Run a program a few times."""
    recorder = AutogradRecorder()
    with recorder:
        for _ in range(times):
            program()
    return recorder


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.layout == torch.strided else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _is_recomputing(frames: list[Row]) -> bool:
    return any(one["filename"].endswith("torch/utils/checkpoint.py") and one["name"] != "forward" for one in frames)


def _python_frames() -> list[Row]:
    found: list[Row] = []
    now = sys._getframe(2)
    while now is not None:
        code = now.f_code
        if not code.co_filename.endswith(_HIDDEN):
            found.append(frame(code.co_name, code.co_filename, now.f_lineno))
        now = now.f_back  # type: ignore[assignment]
    return found  # type: ignore[unreachable]
