"""Programs for the harness in which one address is many things in turn, over several recordings."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from tests.truth.program import Batch, Program, descend, mlp, program


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64, padding_idx=0)
        self.lstm = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(128, 12)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        output, _ = self.lstm(packed)
        return self.head(pad_packed_sequence(output, batch_first=True)[0])  # type: ignore[no-any-return]


@program(cycles=2)
def packed_sequences() -> Program:
    """Sequences of any length, so that nothing lies twice where it lay."""
    model, batch = _Tagger(), Batch()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> Tensor:
        lengths = torch.randint(2, 6, (4,), device="cpu")
        x = pad_sequence([torch.randint(1, 500, (int(number),)) for number in lengths], batch_first=True)
        x, y = batch.of((x, torch.randint(0, 12, x.shape)))
        batch.and_of(lengths)
        loss = F.cross_entropy(model(x, lengths).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(128, 512), nn.ReLU())
        self.heads = nn.ModuleDict({"cls": nn.Linear(512, 10), "reg": nn.Linear(512, 1), "seg": nn.Linear(512, 1000)})
        self.old = nn.Linear(512, 512)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}


@program(cycles=2)
def shared_and_unused_heads() -> Program:
    """Losses over heads that are used in some steps only, and one that never is."""
    model, batch, steps = _Heads(), Batch(), itertools.count()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Tensor:
        x, y = batch.of((torch.randn(256, 128), torch.randint(0, 10, (256,))))
        outputs = model(x)
        loss = F.cross_entropy(outputs["cls"], y)
        loss = loss + outputs["reg" if next(steps) % 5 != 3 else "seg"].square().mean()
        return descend(loss, optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program(cycles=8)
def gradients_freed_before_backward() -> Program:
    """Gradients live from one recording into the next, where none of them lies where it lay before."""
    widths = range(96, 193, 16)
    layers = [layer for width in widths for layer in (nn.Linear(width, width + 16), nn.ReLU())]
    model, batch, steps = nn.Sequential(*layers), Batch(), itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> Tensor:
        loss = model(batch.of(torch.randn(64 + 32 * (next(steps) % 3), 96))).square().mean()
        return descend(loss, optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program(cycles=2)
def momentum_encoder() -> Program:
    """The key encoder's parameters get other memory in every step, as MoCo's own code does it."""
    query = mlp()
    key = copy.deepcopy(query).requires_grad_(False)
    model, batch = nn.ModuleDict({"query": query, "key": key}), Batch()
    optimizer = torch.optim.SGD(query.parameters(), 0.03, momentum=0.9)

    def step() -> Tensor:
        x = batch.of(torch.randn(1024, 64))
        guesses = F.normalize(query(x), dim=1)
        with torch.no_grad():
            for of_query, of_key in zip(query.parameters(), key.parameters(), strict=True):
                of_key.data = of_key.data * 0.99 + of_query.data * 0.01
            wanted = F.normalize(key(x), dim=1)
        return descend(F.cross_entropy(guesses @ wanted.T / 0.07, torch.arange(1024)), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program(cycles=2)
def collocation_points() -> Program:
    """Points at which an equation is asked to hold want gradients, get some, and are no parameters."""
    model, batch = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), Batch()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x, t = (torch.rand(2048, 1, requires_grad=True) for _ in range(2))

    def step() -> Tensor:
        batch.of((x, t))
        u = model(torch.cat([x, t], 1))
        du_dx, du_dt = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        return descend((du_dt + u * du_dx).square().mean(), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program(cycles=2)
def results_kept_in_a_list() -> Program:
    """Losses are collected with what hangs on them, and the weights' own loss is saved as results of `exp`."""
    model, losses, batch = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)), list[Tensor](), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        x = batch.of(torch.randn(512, 64))
        loss = (model(x) - x).square().mean() + sum(p.exp().sum() for p in model.parameters()) * 1e-6
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        return loss.item()

    return Program(step, model, [optimizer], batch, held=losses)
