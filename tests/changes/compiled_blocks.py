"""Has the blocks of a model compiled and checkpointed from outside, and prints what came of it.

Run in a process of its own: one that has compiled something leaves hooks off every optimizer from then on.
"""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tracer.changes.applied import AppliedChanges


def built() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)])


if __name__ == "__main__":
    plain, changed = built(), built()
    plain(torch.ones(2, 4)).sum().backward()
    counter = CompileCounter()
    made = torch.compile
    with pytest.MonkeyPatch.context() as patch, AppliedChanges(["compile", "checkpoint"]) as applied:
        patch.setattr(torch, "compile", functools.partial(made, backend=counter))
        for _ in range(2):
            changed(torch.ones(2, 4)).sum().backward()
    grads = [(a.grad, b.grad) for a, b in zip(plain.parameters(), changed.parameters(), strict=True)]
    found = {
        "num_compiled": applied.hooks["compile"].num_made,
        "num_blocks": applied.hooks["checkpoint"].num_made,
        "notes": applied.notes,
        "num_frames": counter.frame_count,
        "gradients_agree": all(a is not None and b is not None and torch.allclose(2 * a, b) for a, b in grads),
    }
    print(json.dumps(found))
