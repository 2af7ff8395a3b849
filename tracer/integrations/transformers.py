"""A callback for `transformers.Trainer`: `Trainer(..., callbacks=[TimelineCallback("profile")])`."""

from __future__ import annotations

import atexit
from typing import Any

from transformers import TrainerCallback

from tracer.integrations.session_callback import SessionCallback
from tracer.sessions.training_watch import TrainingWatch


class TimelineCallback(SessionCallback, TrainerCallback):  # type: ignore[misc, unused-ignore]  # untyped where missing
    """Profiles the first steps of a training, and writes the files when it ends.

    A step is one of the optimizer's, with all its micro-batches. The Trainer tells its callbacks nothing when training
    raises; what was recorded until then is written when the program ends, when training begins again, or by `close`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the session."""
        self.close()
        # accelerate wraps the optimizer in one that has no hooks.
        optimizer = kwargs.get("optimizer")
        self._begin(kwargs["model"], getattr(optimizer, "optimizer", optimizer))
        atexit.register(self.close)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step."""
        if (session := self._open_session) is not None:
            session.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the files."""
        self.close()

    def close(self) -> None:
        """Write the files of a training that has ended by itself or by an exception; nothing if there is none."""
        atexit.unregister(self.close)
        self._end(None)


class WatchCallback(TimelineCallback):
    """Watches all of a training, without a profiler; see `tracer.watch_training`, whose options it takes."""

    _observe = TrainingWatch
