"""The two engines of `predict` for a model, each asked the same questions: its need, other shapes, other sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.allocator.settings import AllocatorSettings
    from tracer.commands.workload_options import PredictedWorkload
    from tracer.null_gpu.cards import Card, Devices
    from tracer.results.prediction import Prediction, ShapeNeed
    from tracer.sessions.trials.bisections import Trial
    from tracer.workloads.workload import Workload

# The first two have state and cache settled; with shapes that vary, more for what the cache holds.
_NUM_STEPS, _NUM_STEPS_THAT_VARY = 3, 8


@dataclass(frozen=True)
class OnNullGpu:
    """torch's own CUDA code, in this process."""

    devices: Devices | None  # What the process runs on; None where no card was named

    def predict(self, workload: PredictedWorkload) -> Prediction:
        """The memory that a workload needs, by a run on the null GPU."""
        from tracer.null_gpu.cards import A100, Devices
        from tracer.sessions.trials.null_gpu_prediction import predict_workload, shape_need

        devices = self.devices or Devices(A100)
        shapes = shapes_alone(workload)
        answer = predict_workload(
            self._build(workload),
            devices,
            is_limited=self.devices is not None,
            settings=workload.settings,
            num_steps=_NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS,
        )
        needs = (shape_need(self._build(replace(workload, model_input=inputs)), tuple(inputs)) for inputs in shapes)
        return replace(answer, by_shape=tuple(needs))

    def trial(self, workload: PredictedWorkload) -> Trial:
        """Whether a workload fits, by a run on the null GPU."""
        from tracer.sessions.trials.null_gpu_prediction import trial

        assert self.devices is not None  # checked with the options
        return trial(self._build(workload), self.devices.card)

    def _build(self, workload: PredictedWorkload) -> Callable[[], Workload]:
        return lambda: build(workload, "cuda:0")


@dataclass(frozen=True)
class Rehearsed:
    """Tensors without memory."""

    card: Card | None  # The card that it is about; None where none was named
    settings: AllocatorSettings | None  # Settings of its allocator
    device: str  # `cuda` or `cpu`

    def predict(self, workload: PredictedWorkload) -> Prediction:
        """The memory that a workload needs, by a rehearsal."""
        from tracer.sessions.trials.rehearsed_prediction import predict

        shapes = shapes_alone(workload)
        answer = predict(
            lambda: build(workload),
            card=self.card,
            settings=self.settings,
            device=self.device,
            num_steps=_NUM_STEPS_THAT_VARY if shapes else _NUM_STEPS,
            remember=workload.settings,
        )
        needs = (self._need(replace(workload, model_input=inputs), inputs) for inputs in shapes)
        return replace(answer, by_shape=tuple(needs))

    def trial(self, workload: PredictedWorkload) -> Trial:
        """Whether a workload fits, by a rehearsal."""
        from tracer.sessions.trials.rehearsed_prediction import trial

        assert self.card is not None  # checked with the options
        return trial(build(workload), self.card, self.settings)

    def _need(self, workload: PredictedWorkload, inputs: list[str]) -> ShapeNeed:
        from tracer.sessions.trials.rehearsed_prediction import shape_need

        return shape_need(lambda: build(workload), tuple(inputs), card=self.card, device=self.device)


Engine = OnNullGpu | Rehearsed


def build(workload: PredictedWorkload, device: str = "cpu") -> Workload:
    """The workload, with random weights left unwritten, since nothing reads them."""
    import torch

    from tracer.rehearsal.unfilled import unfilled_weights

    torch.manual_seed(workload.seed)
    with unfilled_weights():
        return workload.build(torch.device(device), device_named=device != "cpu", without_memory=True)


def shapes_alone(workload: PredictedWorkload) -> list[list[str]]:
    """The inputs of the smallest and of the largest shapes, where they vary."""
    from tracer.workloads.random_inputs import VARIES

    inputs = workload.model_input
    if not any(VARIES.search(text) for text in inputs):
        return []
    return [[VARIES.sub(by, text) for text in inputs] for by in (r"\1", r"\2")]
