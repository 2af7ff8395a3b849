"""Files as the screen names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.exporters.screen.paths import short_path, shorten_paths, source_place


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/envs/gnn/lib/python3.11/site-packages/torch_geometric/data.py", "torch_geometric/data.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("C:\\Users\\me\\venv\\Lib\\site-packages\\torch_geometric\\data.py", "torch_geometric\\data.py"),
        ("/home/me/train.py", "~/train.py"),
        ("/Users/me/project/train.py", "~/project/train.py"),
        ("C:\\Users\\me\\train.py", "~\\train.py"),
        ("/mnt/data/train.py", "/mnt/data/train.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
        ("/homes/me.py", "/homes/me.py"),
    ],
)
def test_short_paths(path: str, short: str) -> None:
    assert short_path(path) == short


def test_below_the_working_directory_a_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_place(str(tmp_path / "src" / "train.py"), 14) == "src/train.py:14"
    assert source_place(str(tmp_path / "train.py"), None) == "train.py"
    assert source_place("cell 3", 14) == "cell 3, line 14"


def test_paths_in_a_sentence() -> None:
    said = "Look first at step (/home/me/lib/site-packages/lightning/loop.py:7) with 1/2 of it; and/or a smaller batch."
    assert shorten_paths(said) == "Look first at step (lightning/loop.py:7) with 1/2 of it; and/or a smaller batch."
