"""How long OpenMP's threads spin before they sleep, in the processes of this program's commands.

By default they spin for as long as a core has nothing else to do for them: two trainings on the same cores take each
other's time, and each is three times as slow as alone.

Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html, and KMP_BLOCKTIME of
https://openmp.llvm.org/design/Runtimes.html.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tracer.loaded_modules import around_load

_SHORT: Final = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}  # Rounds, of libgomp; ms, of libiomp and libomp
_OF_USER: Final = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")


def spin_shortly() -> None:
    """Have the threads of torch, which is loaded later, spin for a short time, unless the user says for how long.

    The libraries read the environment when torch is loaded. Afterwards it is as before, for the user's script and the
    processes that it starts.
    """
    if "torch" in sys.modules:
        return

    @contextmanager
    def short_spins() -> Iterator[None]:
        end()
        chosen = {} if any(name in os.environ for name in _OF_USER) else _SHORT
        os.environ.update(chosen)
        try:
            yield
        finally:
            for name in chosen:
                os.environ.pop(name, None)

    end = around_load("torch", short_spins)
