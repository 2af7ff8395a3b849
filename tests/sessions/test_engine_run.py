"""An engine's command and the processes that it starts: none outlives the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A command that starts an engine, whose own process ignores SIGTERM and holds a FIFO open.
_COMMAND = """
import os, sys
from pathlib import Path
from tracer.sessions.engine_run import engine_reports, run_engine
fifo = sys.argv[1]
child = "import signal, time; signal.signal(15, signal.SIG_IGN); "
child += f"fifo = open({fifo!r}, 'wb', 0); fifo.write(b'x'); time.sleep(20); fifo.write(b'x')"
engine = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
with engine_reports() as reports:
    run_engine([sys.executable, "-c", engine], reports, Path(fifo).with_name("engine.txt"), os.environ)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
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


def test_an_engine_that_is_not_measured_loads_nothing_of_ours() -> None:
    program = (
        "import sys; from tracer.integrations.vllm import register; register(); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tracer', 'torch', 'rich', 'numpy')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = ["tracer", "tracer.command_line", "tracer.integrations", "tracer.integrations.vllm"]
    assert ended.stdout.strip() == str(names)
