# Lightning-AI/pytorch-lightning#21630; h100:1.75GiB
"""Training whose checkpoints are written by a thread, from a copy made at the time of the save."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
import torch.nn.functional as F


def _clone_tensor(t):
    """A copy of the time of the save, as the parameters change while the file is written."""
    return t.detach().clone()


def apply_to_tensors(value, function):
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: apply_to_tensors(item, function) for key, item in value.items()}
    return [apply_to_tensors(item, function) for item in value] if isinstance(value, list) else value


class AsyncCheckpointIO:
    def __init__(self):
        self._executor = ThreadPoolExecutor(max_workers=1)

    def save_checkpoint(self, checkpoint, path):
        checkpoint = apply_to_tensors(checkpoint, _clone_tensor)
        self.last = self._executor.submit(self._write, checkpoint, path)

    def _write(self, checkpoint, path):
        """Serialisation to a file is left out here."""
        return path, len(checkpoint["state_dict"])


class LitClassifier(nn.Module):
    def __init__(self, width=1024, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def training_step(self, x, y):
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x), y)


model, checkpoint_io = LitClassifier().cuda(), AsyncCheckpointIO()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)
for step in range(6):
    x, y = torch.rand(512, 1024, device="cuda"), torch.randint(0, 100, (512,), device="cuda")
    loss = model.training_step(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 1:
        checkpoint = {"step": step, "state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}
        checkpoint_io.save_checkpoint(checkpoint, f"step={step}.ckpt")
        print(checkpoint_io.last.result(), torch.cuda.memory_allocated() >> 20)
