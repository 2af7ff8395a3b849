"""Other people's libraries under `run --on`, unchanged: two whose loops are their own; the benchmark has more."""

from __future__ import annotations

import pytest

from benchmarks.null_gpu_commands import SCRIPTS, profiled
from benchmarks.null_gpu_libraries import CARD, LIGHTNING, TRAINER, Program, installed, what_is_wrong
from tests.null_gpu.started import needs_null_gpu

pytestmark = [needs_null_gpu, pytest.mark.slow]


@pytest.mark.parametrize("program", [TRAINER, LIGHTNING], ids=lambda program: program.name)
def test_it_is_explained_to_the_byte(program: Program) -> None:
    if not installed(program.packages):
        pytest.skip(f"needs {', '.join(program.packages)}")
    ended = profiled(SCRIPTS / program.script, program.arguments, on=CARD)
    assert what_is_wrong(ended) == ""
