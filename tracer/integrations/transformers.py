"""A callback for `transformers.Trainer`: `Trainer(..., callbacks=[TimelineCallback("profile")])`."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.training_watch import TrainingWatch


class TimelineCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # untyped where missing
    """Profiles the first steps of a training, and writes the files when it ends.

    A step is one of the optimizer's, with all its micro-batches. The Trainer tells its callbacks nothing when training
    raises; what was recorded until then is written when the program ends, when training begins again, or by `close`.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the session."""
        self.close()
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        # accelerate wraps the optimizer in one that has no hooks.
        inner = getattr(optimizer, "optimizer", optimizer)
        self.session = self._observe(model, inner, save_dir=self._save_dir, **self._options)
        self.session.__enter__()
        self._is_open = True
        atexit.register(self.close)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step."""
        if self.session is not None and self._is_open:
            self.session.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the files."""
        self.close()

    def close(self) -> None:
        """Write the files of a training that has ended by itself or by an exception; nothing if there is none."""
        if self.session is not None and self._is_open:
            self._is_open = False
            atexit.unregister(self.close)
            self.session.__exit__(None, None, None)


class WatchCallback(TimelineCallback):
    """Watches all of a training, without a profiler; see `tracer.watch_training`, whose options it takes."""

    _observe = TrainingWatch
