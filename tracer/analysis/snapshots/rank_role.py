"""What part of a job a rank has: its stage and place, where a file's name says so, and how it shards, by its stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from tracer.analysis.snapshots.frames import torch_file
from tracer.snapshot.columns import Snapshot

# `pp1`, `pp_rank_1`, `stage-1`, `pipeline_stage1`; `tp0`, `tp_rank_0`; `dp3`. ZeRO's stage is a setting, no place.
_SEPARATE: Final = r"(?<![a-z])"
_END: Final = r"[_\-]?(?:rank|stage)?[_\-]?(\d+)(?!\d)"
_PIPELINE: Final = re.compile(_SEPARATE + r"(?<!zero)(?<!zero[_\-])(?:pp|pipe(?:line)?|stage)" + _END, re.IGNORECASE)
_TENSOR: Final = re.compile(_SEPARATE + r"(?:tp|tensor)" + _END, re.IGNORECASE)
_DATA: Final = re.compile(_SEPARATE + r"dp" + _END, re.IGNORECASE)
# Megatron's folders: tensor rank in two digits, and the stage in three, where there are several.
_MEGATRON: Final = re.compile(r"(?<![a-z])mp_rank_(\d{2})(?:_(\d{3}))?(?!\d)")
_ROLES: Final = (_MEGATRON, _PIPELINE, _TENSOR, _DATA)
_RANK: Final = re.compile(r"rank[_\-]?(\d+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(\d+)$")

_STRATEGY_OF_TORCHS: Final = (
    ("distributed/fsdp/", "FSDP"),
    ("distributed/_composable/fsdp/", "FSDP"),
    ("distributed/pipelining/", "pipeline"),
    ("distributed/tensor/parallel/", "tensor parallel"),
    ("nn/parallel/distributed.py", "DDP"),
)
_STRATEGY_OF_OTHERS: Final = (
    ("deepspeed/runtime/zero/", "ZeRO"),
    ("deepspeed/runtime/pipe/", "pipeline"),
    ("megatron/core/pipeline_parallel/", "pipeline"),
    ("megatron/core/tensor_parallel/", "tensor parallel"),
    ("fairscale/nn/data_parallel/", "FSDP"),
)


@dataclass(frozen=True, slots=True)
class RankRole:
    """Part of a job that a rank has, as far as names tell."""

    stage: int | None = None  # Stage of a pipeline; None where no name says it
    tensor: int | None = None  # Its place among those that share each layer's tensors; likewise
    data: int | None = None  # Its place among those that have the same part of the model; likewise
    # How the model is spread, by the files that its stacks go through: `FSDP`, `pipeline`, `tensor parallel`, `DDP`,
    # `ZeRO`.
    strategies: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What there is to say, as `stage 1`."""
        places = (("stage", self.stage), ("tensor rank", self.tensor), ("data rank", self.data))
        return (*(f"{word} {number}" for word, number in places if number is not None), *self.strategies)


def rank_of(file: str) -> int | None:
    """The rank that a path names: `rank3/memory_snapshot.pkl`, `snapshot_rank_3.pickle`, `memory_3.pickle`.

    A number of a stage or of a place in it, as in `pp_rank_1`, is none.
    """
    path = PurePath(file)
    for part in (path.name, *reversed(path.parent.parts)):
        if (match := _RANK.search(_without_roles(part))) is not None:
            return int(match.group(1))
    match = _NUMBER.search(_without_roles(path.stem))
    return int(match.group(1)) if match is not None else None


def _without_roles(text: str) -> str:
    for pattern in _ROLES:
        text = pattern.sub("", text)
    return text


def role_of_file(file: str) -> RankRole:
    """The stage and the places that a path names; what is nearest to the file's own name counts."""
    path = PurePath(file)
    parts = (path.name, *reversed(path.parent.parts))
    stage, tensor, data = (_number(pattern, parts) for pattern in (_PIPELINE, _TENSOR, _DATA))
    for part in parts:
        if (match := _MEGATRON.search(part)) is not None:
            tensor = int(match.group(1)) if tensor is None else tensor
            stage = int(match.group(2)) if stage is None and match.group(2) is not None else stage
            break
    return RankRole(stage, tensor, data)


def _number(pattern: re.Pattern[str], parts: Iterable[str]) -> int | None:
    match = next((match for part in parts if (match := pattern.search(part)) is not None), None)
    return int(match.group(1)) if match is not None else None


def strategies_of(snapshot: Snapshot) -> tuple[str, ...]:
    """How the model is spread, by the files of all frames in a recording, in the order of `RankRole.strategies`."""
    torchs = {file for frame in snapshot.stacks.frames if (file := torch_file(frame)) is not None}
    others = {frame.file.replace("\\", "/") for frame in snapshot.stacks.frames}
    strategies = [word for start, word in _STRATEGY_OF_TORCHS if any(file.startswith(start) for file in torchs)]
    strategies += [word for inside, word in _STRATEGY_OF_OTHERS if any(inside in file for file in others)]
    return tuple(dict.fromkeys(strategies))
