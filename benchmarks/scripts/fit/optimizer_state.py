"""The same, where weights and state do not fit beside each other; on h100:2540MiB: state-on-host."""

from pathlib import Path
from runpy import run_path

run_path(str(Path(__file__).with_name("optimizer_step.py")))
