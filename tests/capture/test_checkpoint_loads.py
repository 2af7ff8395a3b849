"""Files that `torch.load` reads whole into host memory."""

from __future__ import annotations

from pathlib import Path

import torch

from tracer.capture.checkpoint_loads import loaded_files, loads_followed


def test_what_is_mapped_or_read_from_memory_is_no_file_that_is_loaded_whole(tmp_path: Path) -> None:
    own = torch.load
    for name, size in (("small", 8), ("large", 4096), ("mapped", 16384)):
        torch.save(torch.zeros(size), tmp_path / f"{name}.pt")
    with loads_followed():
        torch.load(tmp_path / "small.pt")
        torch.load(str(tmp_path / "large.pt"), map_location="cpu")
        torch.load(str(tmp_path / "large.pt"), torch.device("cpu"))
        torch.load(tmp_path / "mapped.pt", mmap=True)
        torch.load(tmp_path / "mapped.pt", map_location=lambda storage, _: storage)
        with (tmp_path / "mapped.pt").open("rb") as file:
            torch.load(file)
        found = loaded_files()
    assert [(Path(file.path).name, file.bytes) for file in found] == [
        (name, (tmp_path / name).stat().st_size) for name in ("large.pt", "small.pt")
    ]
    assert torch.load is own and not loaded_files()
