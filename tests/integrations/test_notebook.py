"""A notebook, executed by a kernel and rendered: what its cells show, and what they say where something fails."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tracer
from tracer.errors import TracerError, UsageError
from tracer.exporters import notebook
from tracer.integrations.notebook import memory_timeline
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import profile_training
from tracer.sessions.training_watch import watch_training

ROOT = Path(tracer.__file__).parent.parent
NEEDS = ("ipykernel", "nbclient", "nbconvert", "pandas")
CELLS = (
    """import sys; sys.path.insert(0, {root!r})
import torch
from tracer import Schedule, profile_training
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())""",
    """with profile_training(model, optimizer, schedule=Schedule(0, 0, 1, 1)) as session:
    for _ in range(2):
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
        session.step()""",
    """import pandas
assert session.peak_bytes == sum(row.bytes for row in session.rows) == session.to_pandas().bytes.sum()
assert pandas.DataFrame([row.values() for row in session.rows]).equals(session.to_pandas())
session""",
    "%load_ext tracer",
    """%%memory_timeline --active 1 --warmup 0 --save-dir magic
for _ in range(2):
    loss = model(torch.randn(128, 64)).square().mean()
    loss.backward()
    optimizer.step(); optimizer.zero_grad()""",
    "profile_training(model).step()",
    """with profile_training(model) as failed:
    model(torch.randn(128, 65))""",
)


def net() -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    import nbformat
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    document = nbformat.v4.new_notebook()
    document.cells = [nbformat.v4.new_code_cell(text.replace("{root!r}", repr(str(ROOT)))) for text in CELLS]
    at = {"metadata": {"path": str(folder)}}
    NotebookClient(document, timeout=300, allow_errors=True, kernel_name="python3", resources=at).execute()
    return document


def shown(cell: Any) -> str:
    (output,) = (output for output in cell.outputs if output.output_type in ("display_data", "execute_result"))
    return str(output.data["text/html"])


@pytest.mark.slow
def test_nothing_is_on_stderr_and_only_what_should_fail_fails(executed: Any) -> None:
    assert [output for cell in executed.cells for output in cell.outputs if output.output_type == "stream"] == []
    failed = [any(output.output_type == "error" for output in cell.outputs) for cell in executed.cells]
    assert failed == [False] * 5 + [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "line"), [(1, "cell 2, line 3"), (2, "cell 2, line 3"), (4, "cell 5, line 3")])
def test_an_answer_is_below_its_cell_with_the_page(executed: Any, cell: int, line: str) -> None:
    text = shown(executed.cells[cell])
    answer, _, page = text.partition("<details open>")
    assert "Peak: " in answer and line in answer and "At the peak" in answer and "display:flex" in answer
    assert "<iframe" in page and "&lt;script" in page
    assert not re.search(r"ipykernel_\d", text)


@pytest.mark.slow
def test_a_session_says_what_happened(executed: Any) -> None:
    said = ["\n".join(cell.outputs[-1].traceback) for cell in executed.cells[-2:]]
    assert "Profiling has not begun" in said[0] and "Hint: Put the loop into a block" in said[0]
    assert "The loop failed in step 1, and the first one that is recorded is step 3" in said[1]
    assert "Schedule(0, 0, 1, 1) records from the first one" in said[1]


@pytest.mark.slow
def test_it_can_be_rendered(executed: Any) -> None:
    from nbconvert import HTMLExporter

    assert "Peak: " in HTMLExporter().from_notebook_node(executed)[0]


def test_a_hint_stands_below_an_exception() -> None:
    error = TracerError("It is so.", hint="Do that.")
    assert traceback.format_exception_only(error)[1:] == ["Hint: Do that.\n"]
    assert "Hint" not in "".join(traceback.format_exception_only(TracerError("It is so.")))


@pytest.mark.parametrize("session", [profile_training, watch_training])
def test_a_step_outside_of_any_block_is_said(session: Any, tmp_path: Path) -> None:
    with pytest.raises(TracerError, match="has not begun"):
        session(net(), save_dir=tmp_path).step()


def test_a_first_step_that_fails_says_how_to_have_it_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught, profile_training(net(), save_dir=tmp_path):
        raise ValueError("no")
    assert "the first one that is recorded is step 3" in caught.value.__notes__[0]


def test_results_are_there_when_the_block_has_ended(tmp_path: Path) -> None:
    model = net()
    with profile_training(model, save_dir=tmp_path / "first", schedule=Schedule(0, 0, 1, 1), screen=False) as session:
        with pytest.raises(TracerError, match="after the block has ended"):
            _ = session.peak_bytes
        assert "so far" in session._repr_html_() and "so far" in repr(session)
        model(torch.ones(2, 4)).sum().backward()
        session.step()
    assert session.peak_bytes == sum(row.bytes for row in session.rows) > 0
    assert repr(session).startswith("<RunResults: Peak: ")
    written = session.save(tmp_path / "second")
    assert {file.path.name for file in written} == {path.name for path in (tmp_path / "second").iterdir()}


def test_a_page_that_is_large_is_named_and_not_kept_in_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>1</script>")
    assert 'srcdoc="&lt;script' in notebook._frame(page)
    monkeypatch.setattr(notebook, "_MAX_PAGE_BYTES", 3)
    assert "iframe" not in notebook._frame(page) and str(page) in notebook._frame(page)
    assert notebook._frame(tmp_path / "none.html") == ""


def test_in_a_notebook_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    displayed: list[object] = []
    shell = SimpleNamespace(kernel=object(), compile=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=displayed.append))
    for session in (
        profile_training(net(), save_dir=tmp_path / "profile", schedule=Schedule(0, 0, 1, 1)),
        watch_training(net(), save_dir=tmp_path / "watch"),
    ):
        with session:
            session.step()
    assert capsys.readouterr() == ("", "")
    assert len(displayed) > 1 and "<br>Files in " in displayed[-1]._repr_html_()  # type: ignore[attr-defined]


def test_the_magic_says_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --nonsense") as raised:
        memory_timeline(SimpleNamespace(), "--nonsense", "pass")
    (line,) = raised.value._render_traceback_()  # type: ignore[attr-defined]  # as IPython shows it
    assert line.startswith("%%memory_timeline: unrecognized arguments") and "--save-dir" in line
    with pytest.raises(UsageError, match="no closing quotation"):
        memory_timeline(SimpleNamespace(), "--save-dir 'a", "pass")


def test_a_cell_that_trains_nothing_is_explained_by_its_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()

    def run_cell(cell: str, *, store_history: bool) -> Any:
        with torch.no_grad():
            model(torch.ones(3, 4))
        return SimpleNamespace(error_before_exec=None, error_in_exec=None)

    shell = SimpleNamespace(run_cell=run_cell, execution_count=1, user_ns={})
    memory_timeline(shell, f"--inference --save-dir {shlex.quote(str(tmp_path / 'calls'))}", "")
    assert (tmp_path / "calls" / "peak.json").is_file()
    memory_timeline(shell, f"--save-dir {shlex.quote(str(tmp_path / 'steps'))}", "")
    assert "--inference, `run` explains such calls" in capsys.readouterr().out
    assert not (tmp_path / "steps").exists()
