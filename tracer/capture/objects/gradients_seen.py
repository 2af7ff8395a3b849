"""Which parameters had a gradient when somebody was about to use it."""

from __future__ import annotations

from collections.abc import Mapping


class GradientsSeen:
    """Collects looks at parameters' gradients over a run.

    That a parameter has no gradient at one moment says little: another optimizer may have stepped, gradients are let go
    of after a step, and an expert of a mixture has its turn in the next one. So a parameter is said to have received
    none only if it was looked at when its gradients had to be there, at its optimizer's step, and never had one at any
    look.
    """

    def __init__(self) -> None:
        self._judged: dict[str, None] = {}
        self._found: set[str] = set()

    def judge(self, has_gradient: Mapping[str, bool]) -> None:
        """Look at parameters, by name, at a moment when each that is trained has its gradient."""
        self._judged.update(dict.fromkeys(has_gradient))
        self.note(has_gradient)

    def note(self, has_gradient: Mapping[str, bool]) -> None:
        """Look at parameters at another moment: a gradient that is there counts, and one that is not does not."""
        self._found |= {name for name, has in has_gradient.items() if has}

    @property
    def missing(self) -> tuple[str, ...] | None:
        """Names of judged parameters that never had a gradient, in the order of the first look; None if none was."""
        if not self._judged:
            return None
        return tuple(name for name in self._judged if name not in self._found)
