"""The store that a process group was started with."""

from __future__ import annotations

from typing import Any

import torch


def process_group_store() -> Any:
    """A connection of its own to the store that the default process group was started with; None where there is none.

    A clone neither keeps the store's server alive nor shares the lock under which the program waits in the original.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else None
