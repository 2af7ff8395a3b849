"""torchtitan's own train.py, begun by the scripts beside this one, each for the sources of some month."""

import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def begin(folder: Path, train: str, settings: Path, *, off: Sequence[str], num_steps: int, options: Sequence[str]):
    """Run it to its end.

    Args:
        folder: torchtitan's sources.
        train: Its train.py, in that folder.
        settings: One of its own files of settings.
        off: Settings that are switched off.
        num_steps: Steps of training.
        options: More of its options.
    """
    text = settings.read_text("utf-8")
    for what in off:
        text = text.replace(f"{what} = true", f"{what} = false")
    with tempfile.TemporaryDirectory() as own_folder:
        own = Path(own_folder) / "settings.toml"
        own.write_text(text, "utf-8")
        sys.path.insert(0, str(folder))
        sys.argv = [
            str(folder / train),
            *("--job.config_file", str(own)),
            *("--training.steps", str(num_steps)),
            *("--metrics.log_freq", "1"),
            *options,
        ]
        runpy.run_path(sys.argv[0], run_name="__main__")
