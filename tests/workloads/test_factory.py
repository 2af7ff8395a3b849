"""Where a factory is found, and what it is called with."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

import main
from models import lstm
from tests.processes import run_python
from tracer.errors import UserModelError
from tracer.workloads.factory import load_factory, parse_arguments


def test_arguments_are_literals_or_else_strings() -> None:
    given = ["a=1", "b=(2, 3)", "c=None", "d=gelu", "e=x=y", "f=false", "g='1'", "h=1e-3"]
    expected = {"a": 1, "b": (2, 3), "c": None, "d": "gelu", "e": "x=y", "f": False, "g": "1", "h": 1e-3}
    assert parse_arguments("--model-arg", given) == expected
    with pytest.raises(UserModelError, match="--model-arg width is not of the form key=value"):
        parse_arguments("--model-arg", ["width"])


def test_names_may_have_dots() -> None:
    assert load_factory("models.lstm:Forecaster.forward") is lstm.Forecaster.forward


OWN_PACKAGE = {
    # No __init__.py: it would lose against a package that has one. gpt is a name that this program has as well.
    "models/gpt.py": "from torch import nn\nclass Theirs(nn.Linear):\n    pass\n",
    "models/late.py": "WIDTH = 7\n",
    "src/beside.py": "NAME = 'beside'\n",
    "src/net.py": """
        import beside
        from models.gpt import Theirs
        def build():
            from models.late import WIDTH
            return Theirs(WIDTH, 2)
    """,
}


def test_a_project_may_have_a_package_of_the_same_name(tmp_path: Path) -> None:
    """In a process of its own, which forgets ours for good."""
    for name, text in OWN_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    program = """
        from tracer.workloads.factory import load_factory
        from tracer.workloads.user_model import StepOptions, build_user_workload
        print(load_factory("models.gpt:Theirs").__name__)
        workload = build_user_workload("src/net.py:build", device="cpu", options=StepOptions(inputs=["7"]))
        print(workload.model.in_features, type(workload).__name__)
    """
    root = str(Path(main.__file__).parent)
    variables = os.environ | {"PYTHONPATH": root}
    ended = run_python("-c", textwrap.dedent(program), folder=tmp_path, variables=variables)
    assert ended.stdout.splitlines() == ["Theirs", "7 ModuleWorkload"], ended.stderr
