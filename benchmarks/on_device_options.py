"""What `on_device.py` is asked for, and what its parts answer with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What a part is to be measured on.

    Attributes:
        device: With its number.
        small: Whether small models will do, to see that everything works.
        backends: Modules that register backends.
    """

    device: torch.device
    small: bool
    backends: tuple[str, ...]
