"""The pretend accelerator for the tests of this folder; where it cannot be built they skip with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.accelerator.build import missing_tool
from tests.accelerator.registered import set_as_new
from tests.elsewhere import Elsewhere


@pytest.fixture(scope="session")
def _elsewhere() -> Iterator[Elsewhere]:
    if (reason := missing_tool()) is not None:
        pytest.skip(reason)
    process = Elsewhere({}, set_as_new)
    yield process
    process.close()


@pytest.fixture
def elsewhere(_elsewhere: Elsewhere) -> Elsewhere:
    """`elsewhere(function, ...)`: what it returns in a process in which the device `pretend` is registered."""
    return _elsewhere
