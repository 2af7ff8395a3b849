"""Addresses of the tensors of model, optimizers and batches, noted while steps are recorded."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set

import torch
from torch import Tensor

from tracer.capture.device.device_blocks import device_blocks
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import live_tensors
from tracer.capture.objects.storage_columns import MovedParameters
from tracer.capture.objects.storage_observer import Observed, StorageObserver, input_tensors
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.capture.torch_private import torch_graph
from tracer.collector import paused_gc


class Observations:
    """Looks at the models and optimizers of a profile.

    Attributes:
        storages: Notes on storages, and on what could not be observed.
        module_names: Dotted names by `id()` of the models' modules, and of other models' that were alive.
        has_stepped: Whether an optimizer was seen in the step that is under way.
        are_cut: Whether more was alive than a walk examined.
    """

    def __init__(self, objects: Callable[[], TrainingObjects | None], is_recording: Callable[[], bool]) -> None:
        self._objects, self._is_recording = objects, is_recording
        self.storages = StorageObserver()
        self._judged: dict[str, None] = {}  # Parameters that were looked at when their gradients had to be there
        self._with_gradient: set[str] = set()
        self.has_stepped = self.are_cut = False
        self.module_names: dict[int, str] = {}
        self._name_modules()
        self._others_named: Set[int] = frozenset()
        self._moved = MovedParameters()
        self._arguments: list[weakref.ref[Tensor]] = []
        # The optimizer that steps and was given a closure, and how often it has called the model so far.
        self._asking: torch.optim.Optimizer | None = None
        self._num_evaluations = 0

    def step_begins(self) -> None:
        """Forget what was noted of the step before."""
        self.has_stepped, self._asking = False, None
        if (objects := self._objects()) is not None:
            objects.forget_names()

    # ------------------------------------------------------------------------------------------------ at all there is
    def look(self, device: torch.device, *, is_walk: bool, batch: Iterable[Observed] = ()) -> None:
        """Look at model and optimizer; in a walk, at all that Python holds.

        There is a walk at the beginning of a cycle, and one where memory ran out in a step that was not recorded.
        """
        objects = self._objects()
        if objects is None:
            return
        with paused_gc():
            held = live_tensors(objects.models) if is_walk else None
            if held is not None:
                self._name_modules(held.module_names)
            self.are_cut |= held is not None and not held.is_complete
            rest = held.tensors if held is not None else ()
            self.storages.observe(
                itertools.chain(objects.tensors(), batch, rest),
                is_walk=is_walk,
                blocks={str(device): device_blocks(device, bucket_bytes=held.bucket_bytes if held else ())},
            )
            self.storages.lines.update(objects.lines())

    def _name_modules(self, others: Mapping[int, str] | None = None) -> None:
        """Add names of modules that models have got since, and of those in no model of the session.

        The `id()` of earlier ones may be other modules' by now.
        """
        if others is not None:
            for number in self._others_named:
                self.module_names.pop(number, None)
        if (objects := self._objects()) is not None:
            self.module_names.update(objects.module_names())
        if others is not None:
            self._others_named = others.keys() - self.module_names.keys()
            self.module_names.update((number, others[number]) for number in self._others_named)

    # ----------------------------------------------------------------------------------------------- at a model's call
    def call(self, given: list[Tensor]) -> None:
        """Note the tensors that a model is called with, and what has changed until then."""
        self.moved_parameters()
        # An optimizer's state within its step, such as LBFGS's directions: from its second evaluation on.
        if self._asking is not None and (objects := self._objects()) is not None:
            self._num_evaluations += 1
            if self._num_evaluations > 1:
                self.storages.observe(objects.state_of(self._asking))
        self.storages.observe(input_tensors(given, role=Role.ARGUMENT))

    def unrecorded_call(self, given: list[Tensor]) -> None:
        """Remember the tensors that a model is called with in a step that is not recorded."""
        self._arguments = [weakref.ref(value) for value in given]

    def living_arguments(self) -> Iterator[Observed]:
        """Return the living arguments of the last call in a step that was not recorded."""
        there = ((reference(), "batch") for reference in self._arguments)
        return ((Role.ARGUMENT, name, tensor) for tensor, name in there if tensor is not None)

    def thread(self, recorded: int) -> None:
        """Remember the thread that calls the model if it is not the one that the profiler records."""
        if threading.get_ident() != recorded:
            self.storages.threads[threading.current_thread().name] = None

    def moved_parameters(self) -> None:
        """Note the models' parameters that have got other memory since the last look."""
        if (objects := self._objects()) is not None and self._is_recording():
            self.storages.observe(self._moved.among(objects.parameters_of_now()))

    # --------------------------------------------------------------------------------------------------- at gradients
    def all_gradients(self, *, are_due: bool) -> None:
        """Look at the gradients of all models' parameters; where they are not due, one that is missing says nothing."""
        if (objects := self._objects()) is not None:
            self._look_at_gradients(objects.trained(), are_due=are_due)

    def before_step(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Look at an optimizer's parameters and gradients before its step; a closure makes them during the step."""
        if (objects := self._objects()) is not None:
            objects.saw_stepping(optimizer)
            if self._is_recording():  # of its own alone: there may be an optimizer for each parameter
                self.storages.observe(self._moved.among(objects.parameters_of(optimizer)))
        if not has_closure:
            self._gradients_of(optimizer)
        elif self._is_recording():
            self._asking, self._num_evaluations = optimizer, 0

    def after_evaluations(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the gradients that a closure has made in a step, as LBFGS's does, or Lightning's."""
        self._asking = None
        self._gradients_of(optimizer)

    def _gradients_of(self, optimizer: torch.optim.Optimizer) -> None:
        if (objects := self._objects()) is not None:
            self.has_stepped = True
            trained = [named for named in objects.parameters_of(optimizer) if named[1].requires_grad]
            self._look_at_gradients(trained, are_due=True)

    def _look_at_gradients(self, parameters: Collection[tuple[str, Tensor]], *, are_due: bool) -> None:
        """Note where gradients lie, and whether each parameter has one."""
        names, tensors = [name for name, _ in parameters], [parameter for _, parameter in parameters]
        gradients = torch_graph.gradients_of(tensors)
        if self._is_recording():
            pairs = zip(names, gradients, strict=True)
            self.storages.observe([(Role.GRADIENT, name, gradient) for name, gradient in pairs if gradient is not None])
        # A parameter that FSDP has flattened is empty, and receives no gradient, where this rank's shard has no part
        # of it. The profiler records every call that is made here: none for each parameter.
        looked = {
            name: gradient is not None
            for name, tensor, gradient in zip(names, tensors, gradients, strict=True)
            if gradient is not None or tensor.numel()
        }
        self._with_gradient |= {name for name, has_gradient in looked.items() if has_gradient}
        if are_due:
            self._judged.update(dict.fromkeys(looked))

    @property
    def without_gradient(self) -> tuple[str, ...] | None:
        """Names of parameters that never had a gradient, in the order of the first look; None if nobody looked.

        That there is none at one moment says little: another optimizer may have stepped, gradients are let go of after
        a step, and an expert of a mixture has its turn in the next one. So only those count that were looked at when
        their gradients had to be there, at their optimizer's step.
        """
        if not self._judged:
            return None
        return tuple(name for name in self._judged if name not in self._with_gradient)
