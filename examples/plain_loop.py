"""A training loop of one's own, and the three lines that profile it.

python examples/plain_loop.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the case that the program is not on the path

from tracer import profile_training


def main(save_dir: str = "profiler_outputs") -> None:
    """Train a small convnet for 12 steps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    with profile_training(model, optimizer, save_dir=save_dir, screen=True) as session:  # line 1 and 2
        for _ in range(12):
            images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            session.step()  # line 3


if __name__ == "__main__":
    main(*sys.argv[1:2])
