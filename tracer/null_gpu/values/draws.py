"""Numbers in place of those that a kernel would have made: normal, the same in every run."""

from __future__ import annotations

import torch

_POOL = 1_048_573
"""How many numbers are drawn once and used again; a prime, so that no row of a tensor repeats the one before it."""
_STEP = 370_261
"""Where the next fresh draw begins: far from the last, and all positions in turn."""


class Draws:
    """Normal numbers from one pool, by address for memory that is not written, and one after the other."""

    def __init__(self) -> None:
        self._pools: dict[torch.dtype, torch.Tensor] = {}
        self._next = 0

    def at(self, address: int, tensor: torch.Tensor) -> torch.Tensor:
        """What an unwritten tensor at an address shows: an element's number depends on its place in memory alone.

        Args:
            tensor: Gives dtype, size and stride. Of the result nothing may be written.
        """
        num_elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        start = address // tensor.element_size() % _POOL
        return self._run(start, num_elements, tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers for a tensor that were not given out before; a single one is positive, as losses and norms are."""
        self._next = (self._next + _STEP) % _POOL
        numbers = self._run(self._next, tensor.numel(), tensor.dtype).view(tensor.size())
        return numbers.abs() if tensor.dim() == 0 and not tensor.is_complex() else numbers

    def _run(self, start: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        pool = self._pool(dtype)
        if start + length <= _POOL:
            return pool[start : start + length]
        whole, rest = divmod(length - (_POOL - start), _POOL)
        return torch.cat([pool[start:], *[pool] * whole, pool[:rest]])

    def _pool(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._pools:
            generator = torch.Generator().manual_seed(0)
            if dtype.is_complex:
                numbers = torch.randn(_POOL, dtype=torch.complex64, generator=generator, device="cpu")
            else:
                numbers = torch.randn(_POOL, generator=generator, device="cpu", dtype=torch.float32)
            self._pools[dtype] = numbers.to(dtype)
        return self._pools[dtype]


def host_generator(device: torch.device, generator: torch.Generator | None) -> torch.Generator:
    """A generator of the host for one random operator, seeded by the state of the device's.

    So the same seed draws the same again, as checkpointing expects, and the program's own generators stay untouched.
    """
    source = generator if generator is not None else torch.cuda.default_generators[device.index or 0]
    seed = (source.initial_seed() * 0x9E3779B97F4A7C15 + source.get_offset() * 0xBF58476D1CE4E5B9) & ((1 << 63) - 1)
    return torch.Generator().manual_seed(seed)
