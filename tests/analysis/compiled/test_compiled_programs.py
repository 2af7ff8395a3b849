"""What compiled regions hold has the lines and modules of the user's code: whole programs, through Inductor's C++ code.

They run in a process of their own: one that has compiled something is another one for all tests that come after.
"""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.compiled_programs import WITHOUT_INDUCTOR, Block
from tests.processes import run_python

ROOT = Path(__file__).resolve().parents[3]
# Two of the others are in OTHERS through AOTAutograd alone.
INDUCTORS = ["resnet", "fno", "step_function", "checkpointed"]
FIRST = inspect.getsourcelines(Block.forward)[1]
BLOCK = (FIRST + 1, FIRST + 2, FIRST + 3)
# Of these the slow ones say what "aot_eager" says, of more graphs.
_MORE_GRAPHS = ("optimizer_step", "dynamic_shapes")
OTHERS = [
    pytest.param(one.__name__, marks=[pytest.mark.slow] if one.__name__ in _MORE_GRAPHS else [])
    for one in WITHOUT_INDUCTOR
]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in INDUCTORS]


@cache
def figures(name: str) -> dict[str, Any]:
    done = run_python("-m", "tests.compiled_programs", name, folder=ROOT, limit_s=600)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module", params=[*OTHERS, *SLOW])
def one(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The figures of a program; all tests of it follow each other, so that it runs once."""
    return figures(request.param)


def test_rows_sum_to_the_peak(one: dict[str, Any]) -> None:
    assert one["rows_bytes"] == one["peak_bytes"]
    assert one["unexplained_bytes"] == 0


def test_what_compiled_regions_hold_at_the_peak_has_a_line_and_a_module(one: dict[str, Any]) -> None:
    sizes = one["bytes"]
    assert sizes["with_line"] >= 0.95 * sizes["compiled"]
    assert sizes["with_module"] >= 0.95 * sizes["in_module"]
    assert (sizes["compiled"] > 0) == (one["name"] != "optimizer_step")


def test_every_line_allocates_without_compiling_too(one: dict[str, Any]) -> None:
    assert one["lines_not_in_eager"] == []
    assert one["watch_fault"] == "None"


def test_the_engine_is_torchs_timeline(one: dict[str, Any]) -> None:
    assert one["is_torchs_timeline"]


@pytest.mark.parametrize("one", SLOW, indirect=True)
def test_what_is_said_to_be_saved_is_what_autograd_saves(one: dict[str, Any]) -> None:
    assert one["said_saved_bytes"] > 0
    assert one["said_and_not_saved"] == []
    assert one["saved_and_no_activation"] == []


def test_inputs_are_the_batch_and_nothing_else(one: dict[str, Any]) -> None:
    assert 0 < one["input_bytes"] <= one["batch_bytes"]


def test_no_module_has_the_name_of_a_wrapper(one: dict[str, Any]) -> None:
    words = ("_orig_mod", "OptimizedModule", "GraphModule")
    assert [path for path in (*one["modules"], *one["known_names"]) if any(word in path for word in words)] == []


def test_a_kept_recording_says_the_same(one: dict[str, Any]) -> None:
    assert one["report_is_same"]


@pytest.mark.parametrize(
    "one", ["checkpointed_eager", pytest.param("checkpointed", marks=pytest.mark.slow)], indirect=True
)
def test_what_backward_computes_again_has_the_lines_of_its_blocks(one: dict[str, Any]) -> None:
    """Those that are computed again without compiling, and the last line, before which torch.utils.checkpoint ends."""
    first, second, _ = BLOCK
    assert {first, second} == set(one["again_in_eager"])
    assert set(one["again"]) <= set(BLOCK)
    assert one["again"]
    if one["name"] == "checkpointed_eager":  # Inductor fuses some of it into what is backward's
        assert {first, second} <= set(one["again"])
    assert any(sentence.startswith("Compiled backward computes ") for sentence in one["sentences"])


@pytest.mark.slow
def test_a_model_that_was_compiled_before_says_what_it_lacks() -> None:
    """Its generated code is there, and no line: only the lines' reason and remedy."""
    one = figures("compiled_before")
    assert one["bytes"]["with_line"] == 0
    assert any("torch.compiler.reset()" in sentence for sentence in one["sentences"])


@pytest.mark.parametrize("one", SLOW, indirect=True)
def test_the_generated_code_is_the_same_but_for_comments(one: dict[str, Any]) -> None:
    assert one["is_same_code"]


@pytest.mark.parametrize("one", OTHERS, indirect=True)
def test_all_is_put_back(one: dict[str, Any]) -> None:
    assert one["left_behind"] == []
