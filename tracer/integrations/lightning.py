"""A callback for `lightning.Trainer`: `Trainer(..., callbacks=[TimelineCallback("profile")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.training_watch import TrainingWatch


class TimelineCallback(Callback):  # type: ignore[misc, unused-ignore]  # untyped where missing
    """Profiles the first steps of a training, and writes the files when it ends or raises.

    A step is one of the optimizers', with all its micro-batches.

    Attributes:
        session: The latest profile, with its findings once training has ended.
    """

    _observe: type[TrainingProfile] | type[TrainingWatch] = TrainingProfile

    def __init__(self, save_dir: str | Path = "profiler_outputs", **options: Any) -> None:
        """Set up the callback; the session begins with the training.

        Args:
            save_dir: Folder for the files.
            options: As `tracer.profile_training` takes them: `schedule`, `screen`, `leave_out`, `keep_recording`, ...
        """
        self.session: TrainingProfile | TrainingWatch | None = None
        self._save_dir, self._options = save_dir, options
        self._is_open = False
        self._num_optimizer_steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the session."""
        self.session = self._observe(pl_module, trainer.optimizers, save_dir=self._save_dir, **self._options)
        self._num_optimizer_steps = trainer.global_step
        self.session.__enter__()
        self._is_open = True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note where the batch lies: a Lightning module is not called as a function."""
        if self.session is not None and self._is_open:
            self.session.observe_batch(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, if this batch was the last one before the optimizer's."""
        if self.session is not None and self._is_open and trainer.global_step > self._num_optimizer_steps:
            self._num_optimizer_steps = trainer.global_step
            self.session.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the files."""
        self._close(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the files of what was recorded until then."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self.session is not None and self._is_open:
            self._is_open = False
            self.session.__exit__(type(error) if error is not None else None, error, None)


class WatchCallback(TimelineCallback):
    """Watches all of a training, without a profiler; see `tracer.watch_training`, whose options it takes."""

    _observe = TrainingWatch
