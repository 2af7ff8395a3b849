"""The pretend accelerator where it is registered: in processes of their own, since it takes `torch.accelerator`."""

from __future__ import annotations

from typing import Any

import torch


def set_as_new() -> None:
    """Register it, if it is not, and have it as at the beginning."""
    import tests.accelerator.pretend as device

    device.set_as_new()


def pretend() -> Any:
    """The module `torch.pretend`."""
    return torch.get_device_module("pretend")
