"""Sessions look at all that is alive: what the tests before have left is gone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_of_other_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Models that an error's frames hold are some of one class, whose names each session behind it looks for: 0.5 s."""
    gc.collect()
    yield
    for value in request.node.callspec.params.values() if hasattr(request.node, "callspec") else ():
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = None
