"""Programs for `benchmarks.signals`: ordinary trainings of ten kinds, each a script that runs for a second or two.

Each begins with `START`: a time limit by SIGALRM, as people write it, that is caught around an epoch. The last line of
each is printed only if it came to its end.
"""

from __future__ import annotations

from typing import Final

START: Final = """
import signal, sys, time
import torch
from torch import nn
import torch.nn.functional as F

device = sys.argv[1]
torch.manual_seed(0)

class TimeLimit(Exception):
    pass

def limit(number, frame):
    raise TimeLimit

signal.signal(signal.SIGALRM, limit)
print("begins", flush=True)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
caught = 0

def batches(number=4):
    for _ in range(number):
        yield torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)

def train(step, num_epochs=5):
    global caught
    for epoch in range(num_epochs):
        try:
            for x, y in batches():
                step(x, y)
        except TimeLimit:
            caught += 1
"""
END: Final = """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print("caught", caught, flush=True)
print("ended", flush=True)
"""
_USUAL: Final = """
def step(x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
PROGRAMS: Final = {
    "loop": _USUAL + "train(step)",
    "workers": _USUAL
    + """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 64), torch.randint(0, 10, (64,)))
def batches(number=4):
    for x, y in DataLoader(data, batch_size=16, num_workers=1):
        yield x.to(device), y.to(device)
train(step, 3)
""",
    "python in backward": """
def helper():
    return None
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        for _ in range(2000):
            helper()
        return gradient
def step(x, y):
    optimizer.zero_grad()
    F.cross_entropy(Slow.apply(model(x)), y).backward()
    optimizer.step()
train(step)
""",
    "checkpoint": """
from torch.utils.checkpoint import checkpoint
def step(x, y):
    optimizer.zero_grad()
    F.cross_entropy(checkpoint(model, x, use_reentrant=False), y).backward()
    optimizer.step()
train(step)
""",
    "closure": """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
def step(x, y):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
train(step, 3)
""",
    "two optimizers": """
other = nn.Linear(10, 1).to(device)
second = torch.optim.SGD(other.parameters(), 0.1)
def step(x, y):
    optimizer.zero_grad()
    other(model(x)).mean().backward()
    optimizer.step()
    second.zero_grad()
    other(model(x).detach()).mean().backward()
    second.step()
train(step)
""",
    "evaluation": """
def step(x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in batches(3):
            F.cross_entropy(model(x), y).item()
    model.train()
train(step)
""",
    "inference": """
def step(x, y):
    with torch.no_grad():
        model(x)
train(step)
""",
    "own handlers": """
class Stop(Exception):
    pass
def stop(number, frame):
    raise Stop
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, stop)
"""
    + _USUAL
    + """
try:
    train(step)
except Stop:
    print("stopped", flush=True)
    sys.exit(0)
""",
    "session": """
from tracer import profile_training
with profile_training(model, optimizer, save_dir=sys.argv[2], screen="none") as session:
    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        session.step()
    train(step)
""",
}
OPTIONS: Final = {"inference": ["--inference"]}
"""Options of `run`, beside the usual ones; the program `session` runs by itself."""
