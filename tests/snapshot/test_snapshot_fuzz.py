from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# SNAPSHOT_FUZZ_COUNT=10000 for the long run; SNAPSHOT_FUZZ_SEED for other files.
COUNT = os.environ.get("SNAPSHOT_FUZZ_COUNT", "150")
SEED = os.environ.get("SNAPSHOT_FUZZ_SEED", "0")


def test_mutated_files_end_in_a_result_or_in_a_clean_error() -> None:
    # A process of its own, because it forks, and other tests leave threads behind.
    command = [sys.executable, "-m", "tests.snapshot.fuzz", "--count", COUNT, "--seed", SEED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "'result'" in done.stdout and "'error'" in done.stdout
