"""An engine's command and the processes that it starts: none outlives the process that started them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_python
from tests.skips import by_default
from tracer.engines.run import engine_reports, run_engine
from tracer.errors import TracerError

# A command that starts an engine, whose own process ignores SIGTERM and holds a FIFO open.
_COMMAND = """
import os, sys
from pathlib import Path
from tracer.engines.run import run_engine
fifo = sys.argv[1]
child = "import signal, time; signal.signal(15, signal.SIG_IGN); "
child += f"fifo = open({fifo!r}, 'wb', 0); fifo.write(b'x'); time.sleep(20); fifo.write(b'x')"
engine = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
run_engine([sys.executable, "-c", engine], Path(fifo).with_name("engine.txt"))
"""


@pytest.mark.parametrize("number", by_default([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], {signal.SIGKILL}))
def test_no_process_of_an_engine_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """The FIFO ends when the last process that could write to it has ended."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = subprocess.Popen([sys.executable, "-c", _COMMAND, str(fifo)], stderr=subprocess.DEVNULL)
    with fifo.open("rb", 0) as written:
        assert written.read(1) == b"x"
        command.send_signal(number)
        assert written.read(1) == b""
    assert command.wait() != 0


def test_an_engine_that_fails_at_once_is_quoted_from_a_file_in_a_new_folder(tmp_path: Path) -> None:
    output = tmp_path / "new" / "engine.txt"
    with pytest.raises(TracerError, match="ValueError: no such model"):
        run_engine([sys.executable, "-c", "raise ValueError('no such model')"], output)
    assert "Traceback" in output.read_text("utf-8")


def test_an_error_in_brackets_is_quoted_without_half_of_them(tmp_path: Path) -> None:
    with pytest.raises(TracerError) as caught:
        run_engine([sys.executable, "-m", "no_such_engine.cli"], tmp_path / "engine.txt")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_engine'")


def test_an_option_that_the_engine_refuses_is_quoted_with_what_is_wrong(tmp_path: Path) -> None:
    """Pydantic says it in the line below its error, here behind the name of the process as vLLM prints it."""
    printed = (
        "(APIServer pid=1) pydantic.ValidationError: 1 validation error for ModelConfig\n"
        "(APIServer pid=1)   Value error, no such dtype [type=value_error, input_value=ArgsKwargs(()), input_type=X]\n"
        "(APIServer pid=1)     For further information visit example.org\n"
    )
    with pytest.raises(TracerError, match=r"ValidationError: 1 validation error for ModelConfig: no such dtype\nHint"):
        run_engine([sys.executable, "-c", f"raise SystemExit({printed!r})"], tmp_path / "engine.txt")


def test_the_first_measured_engine_makes_the_folder_of_reports_for_this_user_alone(tmp_path: Path) -> None:
    worker = tmp_path / "vllm" / "v1" / "worker" / "worker_base.py"
    worker.parent.mkdir(parents=True)
    worker.write_text("class WorkerBase:\n    pass\n")
    (tmp_path / "vllm-1.dist-info").mkdir()
    (tmp_path / "vllm-1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 1\n")
    program = (
        f"import logging, sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from tracer.engines.vllm import register; register(); register(); "
        "logging.getLogger('vllm').warning('KV cache size: 1,024 tokens'); "
        "from vllm.v1.worker.worker_base import WorkerBase; assert WorkerBase.__init__.__wrapped__"
    )
    with engine_reports() as reports:
        assert not reports.exists()
        run_python("-c", program, folder=tmp_path).check_returncode()
        assert stat.S_IMODE(reports.stat().st_mode) == 0o700
        (said,) = reports.iterdir()
        assert said.name.startswith("engine-") and json.loads(said.read_text("utf-8")) == {"cache_tokens": 1024}
    assert not reports.exists()


def test_an_engine_that_is_not_measured_loads_nothing_of_ours() -> None:
    program = (
        "import sys; from tracer.engines.vllm import register; register(); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tracer', 'torch', 'rich', 'numpy')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = ["tracer", "tracer.command_line", "tracer.engines", "tracer.engines.vllm"]
    assert ended.stdout.strip() == str(names)
