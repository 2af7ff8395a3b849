"""Rehearses training steps: what would be allocated, by whom and for how long, without the memory and without a device.

rehearsal = rehearse(workload, device="cuda")
memory = rehearsal.on_device(capacity_bytes=24 << 30)
findings = find_in_cycle(rehearsal.recording, known=rehearsal.known, module_names=rehearsal.module_names)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tracer.allocator.settings import AllocatorSettings
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.storage_observer import input_tensors
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.capture.recording import Recording
from tracer.capture.torch_names import OPTIMIZER_PREFIXES, STEP_PREFIX
from tracer.capture.torch_private import torch_dispatch, torch_fake
from tracer.null_gpu.cards import UNNAMED, Card
from tracer.rehearsal.columns import HOST, RehearsedColumns
from tracer.rehearsal.cpu_kernels import CpuKernels
from tracer.rehearsal.cuda_rules import RULES
from tracer.rehearsal.device_memory import DeviceMemory, DeviceRequests, serve
from tracer.rehearsal.fake_tensors import formatted, held_by, in_order_of_moving, turn_all_fake
from tracer.rehearsal.recorder import AnsweredRead, Recorder, ScratchOf, Watch
from tracer.rehearsal.rule import AsksCudnn, CudaRule, Gpu, ScratchOfGpu
from tracer.rehearsal.unrehearsable import refuse_jobs, rehearsal_error
from tracer.workloads.workload import Workload, train_step

CUDA = "cuda:0"
_NUM_STEPS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """Findings of a rehearsal."""

    device: str  # The device that it is about: `cpu`, or `cuda:0`
    # The steps behind the first one, as a profiler would have recorded them: any analysis of recordings reads it. It is
    # of the first step too where that has the largest peak.
    recording: Recording
    whole: Recording  # All of it, from the first parameter on
    known: KnownStorages  # What every storage is to the training
    module_names: Mapping[int, str]  # Dotted names of the model's modules by `id()`
    requests: DeviceRequests  # All allocations and frees in order
    memory: DeviceMemory  # What torch's allocator makes of these at its default settings and without a limit
    num_steps: int  # How many steps were rehearsed
    # Where the program read numbers that a rehearsal does not have, and what it was told.
    value_reads: tuple[AnsweredRead, ...]

    def on_device(
        self, settings: AllocatorSettings | None = None, *, capacity_bytes: int | None = None
    ) -> DeviceMemory:
        """What the allocator makes of it under other settings, or with so much memory to reserve.

        Args:
            settings: As in PYTORCH_CUDA_ALLOC_CONF; by default torch's.
            capacity_bytes: None for no limit.
        """
        return serve(self.requests, settings, capacity_bytes=capacity_bytes)


def rehearse(
    workload: Workload,
    *,
    device: Literal["cpu", "cuda"] = "cuda",
    rules: Collection[str] | None = None,
    card: Card = UNNAMED,
    cudnn: AsksCudnn | None = None,
    cpu_kernels: CpuKernels | None = None,
    num_steps: int = _NUM_STEPS,
    watch: Watch | None = None,
) -> Rehearsal:
    """Run training steps on tensors that have shapes and no memory.

    Args:
        workload: Built on the CPU, or on the meta device. Its model and optimizer are turned into fake tensors and
            hold no numbers any more.
        rules: Names of the rows of `cuda_rules.RULES` to follow; None for all. On the CPU none is followed.
        cudnn: Whom to ask for the workspaces of convolutions; None to leave them out.
        cpu_kernels: On the CPU, whom to ask what kernels take for themselves; None to leave it out.
        num_steps: With optimizer state, the second step is the first that is like all that follow.
        watch: Called with every operator when it has run.

    Returns:
        What was allocated, and what an analysis needs to explain it.

    Raises:
        RehearsalError: A step cannot be rehearsed; the message has the user's line.
    """
    followed = [rule for rule in RULES if rules is None or rule.name in rules] if device == "cuda" else []
    gpu = Gpu(card, cudnn)
    for rule in followed:
        if rule.prepare is not None:
            rule.prepare(gpu)
        if rule.workload is not None:
            workload = rule.workload(workload)
    mode = torch_fake.fake_tensors()
    kernels = _kernels(followed, gpu)
    if cpu_kernels is None:
        by_operator = {torch_dispatch.operator_with_overload(name): kernel for name, kernel in kernels.items()}
        order = {name: positions for rule in followed for name, positions in rule.order.items()}
        recorder = Recorder(mode, _scratch_of(followed, gpu), order=order, kernels=by_operator, watch=watch)
    else:
        recorder = Recorder(mode, cpu_kernels.scratch_of, result_of=cpu_kernels.result_of, watch=watch)
    gpu.put_on_host = recorder.is_on_host
    objects = TrainingObjects(workload.model, workload.optimizer)
    run = _RehearsalRun(workload, recorder, objects, followed)
    modules, optimizers, others = held_by([workload, *objects.models.values(), *objects.optimizers])
    refuse_jobs(modules)
    together = _put_together(modules, followed)
    turn_all_fake(mode, modules, optimizers, others)
    for module, names in together:
        recorder.copied_together([getattr(module, name) for name in names])
    for tensor in (tensor for module in modules for tensor in in_order_of_moving(module)):
        recorder.number(tensor)
    for optimizer, rule in ((updating, rule) for updating in optimizers for rule in followed):
        if rule.optimizer is not None:
            rule.optimizer(optimizer)
    module_names = objects.module_names()
    with _standing_in(followed, kernels, gpu), formatted(), torch.compiler.set_stance("force_eager"):
        run.steps(num_steps)
    return _results(run, device, module_names)


def _put_together(models: list[nn.Module], rules: list[CudaRule]) -> list[tuple[nn.Module, list[str]]]:
    modules = {id(module): module for model in models for module in model.modules()}.values()
    by = [rule.together for rule in rules if rule.together is not None]
    return [(module, names) for module in modules for together in by if (names := together(module))]


def _scratch_of(rules: list[CudaRule], gpu: Gpu) -> Callable[[Any], tuple[ScratchOf, ...]]:
    scratch: dict[str, tuple[ScratchOf, ...]] = {}
    for rule in rules:
        for name, of_rule in rule.scratch.items():
            scratch[name] = (*scratch.get(name, ()), _of_gpu(of_rule, gpu))
    return lambda operator: scratch.get(torch_dispatch.schema_name(operator), ())


def _of_gpu(of_rule: ScratchOfGpu, gpu: Gpu) -> ScratchOf:
    return lambda call: of_rule(call, gpu)


@contextmanager
def _standing_in(rules: list[CudaRule], kernels: Mapping[str, Callable[..., Any]], gpu: Gpu) -> Iterator[None]:
    with ExitStack() as back:
        back.enter_context(torch_dispatch.kernels_replaced(kernels, "AutogradCPU"))
        for rule in rules:
            if rule.around is not None:
                back.enter_context(rule.around())
            for name, replacement in rule.functions.items():
                owner_name, _, attribute = name.rpartition(".")
                owner = resolve_name(owner_name)
                original = getattr(owner, attribute)
                setattr(owner, attribute, replacement(original, gpu))
                back.callback(setattr, owner, attribute, original)
        yield


def _kernels(rules: list[CudaRule], gpu: Gpu) -> dict[str, Callable[..., Any]]:
    kernels: dict[str, Callable[..., Any]] = {}
    for name, replacement in ((name, by) for rule in rules for name, by in rule.operators.items()):
        operator = torch_dispatch.operator_with_overload(name)
        if operator is not None:
            kernels[name] = replacement(torch_dispatch.made_of_others(operator), gpu)
    return kernels


class _RehearsalRun:
    def __init__(self, workload: Workload, recorder: Recorder, objects: TrainingObjects, rules: list[CudaRule]) -> None:
        self.workload, self.recorder, self.objects, self.rules = workload, recorder, objects, rules
        self.step_starts_ns: list[int] = []
        self.parameters: set[int] = set()
        self.optimizer_state: set[int] = set()
        self._step_start_ns = 0

    def steps(self, num_steps: int) -> None:
        """Run them, with hooks on every optimizer's step."""
        handles: list[Any] = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            with self.recorder.recording():
                for number in range(num_steps):
                    # As at the beginning of a profiler's cycle: of the first step, and of those behind it.
                    if number <= 1:
                        self._observe()
                    start_ns = self.recorder.begin_step()
                    self.step_starts_ns.append(start_ns)
                    self._step_or_error(number)
                    self.recorder.span(f"{STEP_PREFIX}{number}", start_ns)
                self._observe()
        finally:
            for handle in handles:
                handle.remove()

    def _step_or_error(self, number: int) -> None:
        try:
            self._step()
        except Exception as error:
            sizes = np.array([row[1] for row in self.recorder.log.events], np.int64)
            known_bytes = int(np.cumsum(sizes).max(initial=0))
            raise rehearsal_error(error, number, known_bytes) from error

    def _step(self) -> None:
        """Run a step and observe the same tensors as in a run under the profiler."""
        train_step(self.workload, lambda batch: self.recorder.observe(input_tensors(batch)))

    def _observe(self) -> None:
        """Note what everything is that the model and its optimizers hold, and that the rest is held too."""
        self.objects.forget_names()
        tensors = list(self.objects.tensors())
        self.recorder.observe(tensors)
        self.parameters |= self._numbers(tensors, Role.PARAMETER)
        self.optimizer_state |= self._numbers(tensors, Role.OPTIMIZER_STATE)
        self.recorder.observe_the_rest()

    def _numbers(self, tensors: list[tuple[Role, str, Tensor]], wanted: Role) -> set[int]:
        return {self.recorder.number(tensor) for role, _, tensor in tensors if role == wanted}

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """A closure, which evaluates the loss, is put between two stretches of the optimizer's own work."""
        self.objects.saw_stepping(optimizer)
        closure = next((each for each in (*args[1:], *kwargs.values()) if callable(each)), None)
        if closure is None:
            self._observe_gradients(optimizer)
        self._step_start_ns = self.recorder.log.tick()
        if closure is None:
            return None

        def evaluate() -> Any:
            self._optimizer_span(optimizer)
            try:
                return closure()
            finally:
                self._step_start_ns = self.recorder.log.tick()

        by = {id(closure): evaluate}
        return tuple(by.get(id(argument), argument) for argument in args), {
            name: by.get(id(value), value) for name, value in kwargs.items()
        }

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizer_span(optimizer)
        for rule in self.rules:
            if rule.on_host is not None:
                self.recorder.is_on_host(rule.on_host(optimizer))
        if any(callable(argument) for argument in (*args[1:], *kwargs.values())):
            self._observe_gradients(optimizer)

    def _observe_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        named = self.objects.parameters_of(optimizer)
        self.recorder.observe(
            (Role.GRADIENT, name, parameter.grad) for name, parameter in named if parameter.grad is not None
        )

    def _optimizer_span(self, optimizer: torch.optim.Optimizer) -> None:
        self.recorder.span(f"{OPTIMIZER_PREFIXES[0]}{type(optimizer).__name__}.step", self._step_start_ns)


def _results(run: _RehearsalRun, device: str, module_names: Mapping[int, str]) -> Rehearsal:
    log = run.recorder.log
    on_host = np.array([storage[4] for storage in log.storages], bool)
    table = np.array(log.events, np.int64).reshape(-1, 5)
    undecided, in_backward = np.zeros(len(table), np.int64), np.zeros(len(table), bool)
    for row, size_bytes, is_backward in log.undecided:
        undecided[row], in_backward[row] = size_bytes, is_backward
    on_device = ~on_host[table[:, 0]]
    table = table[on_device]
    starts = np.array(run.step_starts_ns, np.int64)
    requests = DeviceRequests(
        storage=table[:, 0].copy(),
        size_bytes=table[:, 1].copy(),
        op=table[:, 3].copy(),
        step=np.searchsorted(starts, table[:, 2], side="right") - 1,
        undecided_bytes=undecided[on_device],
        in_backward=in_backward[on_device],
    )
    memory = serve(requests)
    name = CUDA if device == "cuda" else HOST
    columns = RehearsedColumns(log, name, memory if device == "cuda" else None)
    of_run = {"parameters": run.parameters, "optimizer_state": run.optimizer_state}
    start_ns = run.step_starts_ns[0 if _peak_is_in_first_step(requests, memory, device) else min(1, len(starts) - 1)]
    return Rehearsal(
        device=name,
        recording=columns.recording(start_ns, **of_run),
        whole=columns.recording(0, **of_run),
        known=columns.known(),
        module_names=module_names,
        requests=requests,
        memory=memory,
        num_steps=len(run.step_starts_ns),
        value_reads=run.recorder.value_reads,
    )


def _peak_is_in_first_step(requests: DeviceRequests, memory: DeviceMemory, device: str) -> bool:
    in_use = memory.allocated_bytes if device == "cuda" else np.cumsum(requests.size_bytes)
    later = requests.step > 0
    return bool(in_use[~later].max(initial=0) > in_use[later].max(initial=0))
