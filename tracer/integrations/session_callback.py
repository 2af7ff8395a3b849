"""One session for each training of somebody else's trainer: what its callbacks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer.sessions.training_profile import TrainingProfile
from tracer.sessions.training_watch import TrainingWatch


class SessionCallback:
    """Begins, steps and ends a session.

    Attributes:
        session: The latest one, with its findings once training has ended.
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

    def _begin(self, model: Any, optimizers: Any) -> None:
        self.session = self._observe(model, optimizers, save_dir=self._save_dir, **self._options)
        self.session.__enter__()
        self._is_open = True

    @property
    def _open_session(self) -> TrainingProfile | TrainingWatch | None:
        return self.session if self._is_open else None

    def _end(self, error: BaseException | None) -> None:
        if (session := self._open_session) is not None:
            self._is_open = False
            session.__exit__(type(error) if error is not None else None, error, None)
