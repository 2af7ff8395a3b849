"""Functions full of operators that make no call. Their lines are what counts, so nothing here is formatted."""

# ruff: noqa
# fmt: off
from __future__ import annotations

import torch
from torch import Tensor


def straight(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    z = z * 2
    w = torch.relu(z)
    w = w + z
    w += 1
    return -w


def same_line(x: Tensor, y: Tensor) -> Tensor:
    a = torch.relu(x) + torch.tanh(y) * 2
    return a


def many_lines(x: Tensor, y: Tensor) -> Tensor:
    a = (
        torch.relu(x)
        + y
        - 1
    )
    b = torch.tanh(
        a
    ) * 3
    return a / b


def loop(x: Tensor, y: Tensor) -> Tensor:
    for number in range(3):
        x = x + y
        h = torch.relu(x)
        h = h * number
        y = torch.tanh(h)
    return x - y


def before_and_after_a_loop(x: Tensor, y: Tensor) -> Tensor:
    x = x + 1
    for _ in range(2):
        x = torch.relu(x)
        x = x + y
    x = x + 2
    return torch.tanh(x)


def either(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    if len(x) > 100:
        x = x + 1
        x = torch.tanh(x)
    else:
        x = x + 2
        x = torch.sigmoid(x)
    return x


def items(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    a = x[0]
    b = x[1:]
    y = torch.tanh(y)
    y[0] = a
    y[1:] = b * 2
    return y


def calls_itself(x: Tensor, y: Tensor, depth: int = 2) -> Tensor:
    x = x + y
    if depth:
        x = calls_itself(x, y, depth - 1)
        x = x * 2
    return x - y


def mixed(x: Tensor, y: Tensor) -> Tensor:
    total = 0
    for row in zip(x, y):
        total = torch.relu(row[0])  # type: ignore[assignment]
        total = total * float(2)  # type: ignore[assignment]
        total -= torch.tanh(row[1])  # type: ignore[assignment]
    scale = 1 / x
    scale = 1 - scale
    return total + scale @ y.T


def returns_early(x: Tensor, y: Tensor) -> Tensor:
    if x is y:
        return x + 1
    x = x + 2
    if len(y):
        return x * y
    return x - 2


def decorated_with(function):
    return function


@decorated_with
@torch.no_grad()
def decorated(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    x = x + y
    return x


def with_a_lambda(x: Tensor, y: Tensor) -> Tensor:
    def inner(z: Tensor) -> Tensor:
        return z * 3

    x = torch.relu(x)
    x = x + y
    x = inner(x)
    return x - y


def comparing(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    mask = x > y
    other = 2 < x
    return mask & other


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        h = h * 2
        x = x + h
        try:
            x = x + self.second(x)
        finally:
            x = x * 2
        with torch.no_grad():
            y = y + 1
        return x + y


# Nothing but running it tells which side it was: both make the same operator, and no call follows.
def nobody_can_tell(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    if x.requires_grad:
        x = x + 1
    else:
        x = x + 2
    return x


# Nor which turn of the loop it was.
def a_loop_without_calls(x: Tensor, y: Tensor) -> Tensor:
    x = torch.relu(x)
    for number in range(2):
        x = x + number
    return x + y


TOLD = (
    straight, same_line, many_lines, loop, before_and_after_a_loop, either, items, calls_itself, mixed, decorated,
    with_a_lambda, comparing, returns_early,
)
