"""A script as a rank of a job whose others do not run, without a command of ours: SCRIPT [ARGUMENTS].

Its process has the null GPU and the variables of `tracer.null_gpu.job.place`. So versions of torch run it that are too
old for the commands; values are not computed.
"""

import runpy
import sys
from typing import Any

import torch

from tracer.null_gpu.job.lone_rank import lone_rank
from tracer.null_gpu.job.place import RankPlace
from tracer.null_gpu.job.store import LoneStore

place = RankPlace.here()
assert place is not None, "not a rank"
private: Any = torch._C._distributed_c10d
private.FileStore = lambda *_: LoneStore()  # in which torch 2.6 exchanges handles of symmetric memory
sys.argv = sys.argv[1:]
with lone_rank(place):
    runpy.run_path(sys.argv[0], run_name="__main__")
