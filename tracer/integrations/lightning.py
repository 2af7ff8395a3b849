"""A callback for `lightning.Trainer`: `Trainer(..., callbacks=[TimelineCallback("profile")])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from tracer.integrations.session_callback import SessionCallback
from tracer.sessions.training_watch import TrainingWatch


class TimelineCallback(SessionCallback, Callback):  # type: ignore[misc, unused-ignore]  # untyped where missing
    """Profiles the first steps of a training, and writes the files when it ends or raises.

    A step is one of the optimizers', with all its micro-batches.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the session."""
        self._num_optimizer_steps = trainer.global_step
        self._begin(pl_module, trainer.optimizers)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note where the batch lies: a Lightning module is not called as a function."""
        if (session := self._open_session) is not None:
            session.observe_batch(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, if this batch was the last one before the optimizer's."""
        if (session := self._open_session) is not None and trainer.global_step > self._num_optimizer_steps:
            self._num_optimizer_steps = trainer.global_step
            session.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the files."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the files of what was recorded until then."""
        self._end(exception)


class WatchCallback(TimelineCallback):
    """Watches all of a training, without a profiler; see `tracer.watch_training`, whose options it takes."""

    _observe = TrainingWatch
