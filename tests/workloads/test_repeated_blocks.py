"""Which parts of a model are its blocks: those that repeat."""

from __future__ import annotations

import pytest
from torch import nn

from tracer.workloads.module_steps import repeated_blocks


class Repeated(nn.Module):
    """A block as people write them: a part with parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class Around(nn.Module):
    """A module that has its parts as attributes, by the names given."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def two() -> nn.ModuleList:
    return nn.ModuleList([Repeated(), Repeated()])


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(Around(layers=two()), nn.Linear(4, 4)), ["0.layers.0", "0.layers.1"]),
        (nn.Sequential(Around(layers=two()), Around(layers=two())), ["0", "1"]),
        (
            Around(encoder=Around(layers=two()), decoder=Around(layers=two())),
            [f"{c}coder.layers.{n}" for c in ("en", "de") for n in (0, 1)],
        ),
        (Around(down=Repeated(), up=Repeated(), head=nn.Linear(4, 4)), ["down", "up"]),
        (Around(layers=nn.ModuleDict({"0": Repeated(), "1": Repeated()})), ["layers.0", "layers.1"]),
        (nn.ModuleList([two(), two()]), ["0.0", "0.1", "1.0", "1.1"]),
        (nn.Sequential(Repeated(), nn.Linear(4, 4)), ["0"]),
        (Around(features=nn.Sequential(nn.Linear(4, 4)), head=nn.Sequential(nn.Linear(4, 4))), []),
    ],
)
def test_blocks_are_the_parts_that_repeat_at_any_depth(model: nn.Module, names: list[str]) -> None:
    name_of = {module: name for name, module in model.named_modules()}
    assert [name_of[block] for block in repeated_blocks(model)] == names
