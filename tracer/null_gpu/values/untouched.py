"""Large tensors of the host that nobody touches: they take no memory, and no time to be filled.

A script makes its weights on the CPU and moves them to the device, where no number of theirs is kept. So what fills or
copies a whole tensor is noted as a recipe; `sources/storages.c`, whose head names the exceptions, has a piece made as
soon as it is touched, by the same kernels of torch's and from the generator's state of that time. Generators advance as
they would have. Whatever is not understood here runs as it is: this saves memory and time, and decides nothing.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from typing import Any, Protocol

import torch

from tracer.capture.torch_private import torch_dispatch, torch_modules
from tracer.null_gpu.values.kernels import unrecorded
from tracer.null_gpu.values.operators import tensors_of

LEAST_BYTES = 1 << 20
"""Of a tensor that has a storage of its own: LEAST in storages.c."""
_MOST_SMALL_CALLS = 5_000
"""Of an operator with small tensors, for which the way through Python takes 5 us; then torch's own kernel is back."""
_TAIL = 32
"""Numbers at a tensor's end that are drawn as they are: torch draws the last 16 again where their count is uneven."""
Kernel = Callable[..., Any]
Fill = Callable[..., torch.Tensor]
"""Fills a tensor and returns it; where it draws, with the generator that it is given."""


class Recipe(Protocol):
    """The elements of a dense tensor, in the order in which they lie in memory."""

    num_elements: int
    dtype: torch.dtype

    def values(self, first: int, last: int) -> torch.Tensor:
        """Return some of them; `first` is a multiple of 16, and so is `last` but at the end."""
        ...


@dataclass(slots=True)
class Filled:
    """One number."""

    num_elements: int
    dtype: torch.dtype
    fill: Fill

    def values(self, first: int, last: int) -> torch.Tensor:
        """Return some elements."""
        return self.fill(_empty(last - first, self.dtype))


@dataclass(slots=True)
class Mapped:
    """Elements of another recipe, each by itself as another type."""

    source: Recipe
    num_elements: int
    dtype: torch.dtype

    def values(self, first: int, last: int) -> torch.Tensor:
        """Return some elements."""
        return self.source.values(first, last).to(self.dtype)


@dataclass(slots=True)
class Drawn:
    """Numbers that an operator draws one after the other, from a state of the generator."""

    num_elements: int
    dtype: torch.dtype
    draw: Fill
    state: torch.Tensor
    draws_each: int
    _states: dict[int, torch.Tensor] = field(default_factory=dict)  # At elements that were come to

    def values(self, first: int, last: int) -> torch.Tensor:
        """Return some elements."""
        is_end = last == self.num_elements
        begin = min(first, max(0, self.num_elements - _TAIL) // 16 * 16) if is_end else first
        at = max((place for place in self._states if place <= begin), default=0)
        state = self._states.get(at, self.state)
        generator = torch.Generator().set_state(_skipped(state, (begin - at) * self.draws_each))
        values = self.draw(_empty(last - begin, self.dtype), generator=generator)
        if not is_end:
            self._states[last] = generator.get_state()
        return values[first - begin :]

    def state_after(self) -> torch.Tensor:
        """Return the generator's state when all have been drawn."""
        last = _TAIL + self.num_elements % 16
        before = _skipped(self.state, (self.num_elements - last) * self.draws_each)
        generator = torch.Generator().set_state(before)
        self.draw(_empty(last, self.dtype), generator=generator)
        return generator.get_state()


@dataclass(slots=True)
class DrawnAgain:
    """Numbers of which it depends on the others how many are drawn: the whole tensor is drawn again."""

    num_elements: int
    dtype: torch.dtype
    draw: Fill
    state: torch.Tensor
    _all: torch.Tensor | None = None

    def values(self, first: int, last: int) -> torch.Tensor:
        """Return some elements."""
        if self._all is None or not first:
            generator = torch.Generator().set_state(self.state)
            self._all = self.draw(_empty(self.num_elements, self.dtype), generator=generator)
        values = self._all[first:last]
        if last == self.num_elements:
            self._all = None
        return values


def _empty(num_elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(num_elements, dtype=dtype, device="cpu")


def _skipped(state: torch.Tensor, num_draws: int) -> torch.Tensor:
    """A generator's state after some draws of 32 bits."""
    state = state.clone()
    _library().null_gpu_skip_draws(ctypes.c_void_p(state.data_ptr()), ctypes.c_uint64(num_draws))
    return state


class _Wanted(ctypes.Structure):
    _fields_ = (
        ("recipe", ctypes.c_int64), ("offset", ctypes.c_size_t), ("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p)
    )  # fmt: skip


@cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    for name, result, arguments in (
        ("null_gpu_own_storages", ctypes.c_bool, ()),
        ("null_gpu_leave", ctypes.c_bool, (ctypes.c_void_p, ctypes.c_int64)),
        ("null_gpu_storage_size", ctypes.c_size_t, (ctypes.c_void_p,)),
        ("null_gpu_recipe", ctypes.c_int64, (ctypes.c_void_p, ctypes.c_void_p)),
        ("null_gpu_forgotten_recipe", ctypes.c_int64, ()),
        ("null_gpu_piece_made", None, (ctypes.c_void_p, ctypes.c_bool)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Recipes:
    """The recipes of the process's storages, by number, and the thread that makes pieces by them."""

    def __init__(self) -> None:
        self._by_number: dict[int, Recipe] = {}
        self._numbers = count(1)
        self._starting = threading.Lock()
        self.eager: set[int] = set()  # threads by identifier that fill tensors as torch does: the maker is one
        self._process = 0

    def leave(self, tensor: torch.Tensor, recipe: Recipe) -> bool:
        """Leave a whole storage unwritten; False if that cannot be."""
        if self._process != os.getpid():
            with self._starting:
                self.start_maker()
        while forgotten := _library().null_gpu_forgotten_recipe():
            self._by_number.pop(forgotten, None)
        number = next(self._numbers)  # one call: other threads leave tensors too
        self._by_number[number] = recipe
        if _library().null_gpu_leave(tensor.data_ptr(), number):
            return True
        del self._by_number[number]
        return False

    def of(self, tensor: torch.Tensor) -> tuple[Recipe, list[tuple[int, int]]] | None:
        """A storage's recipe, and the elements that have been written since; None where it has none."""
        pieces = (ctypes.c_ubyte * (tensor.nbytes // LEAST_BYTES + 1))()
        if not (number := _library().null_gpu_recipe(tensor.data_ptr(), pieces)):
            return None
        each = LEAST_BYTES // tensor.element_size()
        written = [(n * each, min((n + 1) * each, tensor.numel())) for n, is_written in enumerate(pieces) if is_written]
        return self._by_number[number], written

    def start_maker(self) -> None:
        """Start the thread that makes pieces, in this process."""
        if self._process == os.getpid():
            return
        if not self._process:
            os.register_at_fork(after_in_child=self._start_in_child)
        is_started = threading.Event()
        self.eager.clear()
        # No thread of `threading`: a program that counts its threads finds its own.
        _thread.start_new_thread(unrecorded(self._make_pieces), (is_started,))
        is_started.wait()
        _library().null_gpu_has_maker()
        self._process = os.getpid()

    def _start_in_child(self) -> None:
        self._starting = threading.Lock()
        self.start_maker()

    def _make_pieces(self, is_started: threading.Event) -> None:
        self.eager.add(threading.get_ident())
        is_started.set()
        library, wanted = _library(), _Wanted()
        while True:
            library.null_gpu_next_piece(ctypes.byref(wanted))
            is_made = False
            try:
                recipe = self._by_number[wanted.recipe]
                first = wanted.offset // recipe.dtype.itemsize
                values = recipe.values(first, first + wanted.size // recipe.dtype.itemsize)
                ctypes.memmove(wanted.buffer, values.data_ptr(), wanted.size)
                is_made = True
            except Exception as error:
                warnings.warn(f"null GPU: values of a tensor could not be made: {error!r}", stacklevel=1)
            finally:
                library.null_gpu_piece_made(ctypes.byref(wanted), is_made)


_RECIPES = _Recipes()  # One, as the storages are the process's


@contextmanager
def filled_at_once() -> Iterator[None]:
    """Within the block, this thread's tensors are filled as torch fills them."""
    thread = threading.get_ident()
    is_first = thread not in _RECIPES.eager
    _RECIPES.eager.add(thread)
    try:
        yield
    finally:
        if is_first:
            _RECIPES.eager.discard(thread)


_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_SERIAL_ELEMENTS = 32_768
"""Up to which torch's operators of the host use one thread: at::internal::GRAIN_SIZE."""
_SWITCH = "NULL_GPU_HOST_TENSORS"
"""Set to `real`, tensors of the host are filled as they are without the null GPU."""


_TRIED_ELEMENTS = 8192
"""So few that one thread does it: OpenMP must not be in use, and fail in a forked child, where it was not before."""


class UntouchedTensors:
    """Kernels for the CPU in front of torch's own, which leave large tensors unwritten, until `remove`."""

    def __init__(self) -> None:
        """Replace torch's kernels, where storages can be left unwritten."""
        self._libraries: dict[str, Any] = {}
        self._draws: dict[tuple[str, torch.dtype], int] = {}
        self._end_draws: Callable[[], None] = lambda: None
        if os.environ.get(_SWITCH) == "real" or not _library().null_gpu_own_storages():
            return
        for name, make in {
            "normal_": self._draw,
            "uniform_": self._draw,
            "zero_": lambda *_: _left_zero,
            "fill_.Scalar": self._fill,
            "copy_": self._copy,
            "clone": self._clone,
            "_to_copy": self._clone,
        }.items():
            original = torch_dispatch.device_kernel(f"aten::{name}", "CPU")
            self._libraries[name] = torch_dispatch.kernel_library("aten")
            kernel = unrecorded(self._of_large(name, original, make(name, original)))
            torch_dispatch.add_kernel(self._libraries[name], name, kernel, "CPU")
        self._end_draws = torch_modules.around_truncated_draws(self._truncated_draw)

    def remove(self) -> None:
        """Leave torch's own kernels; what is unwritten by now is still made when it is touched."""
        self._end_draws()
        for name in list(self._libraries):
            self._remove(name)

    def _remove(self, name: str) -> None:
        if (library := self._libraries.pop(name, None)) is not None:
            torch_dispatch.remove_library(library)

    def _of_large(self, name: str, original: Kernel, kernel: Callable[..., Any]) -> Kernel:
        """Return a kernel that calls torch's own but for large tensors; it goes if only small ones come."""
        num_small = 0

        def run(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal num_small
            if not isinstance(tensor, torch.Tensor):  # the dispatcher hands it over so where it stands for a number
                tensor = torch.scalar_tensor(tensor, dtype=_OF_NUMBERS[type(tensor)], device="cpu")
            if name == "copy_" and not isinstance(args[0], torch.Tensor):
                args = (torch.scalar_tensor(args[0], dtype=_OF_NUMBERS[type(args[0])], device="cpu"), *args[1:])
            if tensor.numel() <= _SERIAL_ELEMENTS:
                num_small += 1
                if num_small == _MOST_SMALL_CALLS:
                    self._remove(name)
                return original(tensor, *args, **kwargs)
            if threading.get_ident() not in _RECIPES.eager:
                with torch_dispatch.BelowOperators():
                    result = kernel(tensor, *args, **kwargs)
                if result is not None:
                    num_small = 0
                    return result
            if not any(map(_is_left, tensors_of((tensor, *args)))):
                return original(tensor, *args, **kwargs)
            # Threads of OpenMP that wait for a piece would wait for this one, which has the interpreter's lock.
            num_threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                return original(tensor, *args, **kwargs)
            finally:
                torch.set_num_threads(num_threads)

        return run

    def _draw(self, name: str, original: Kernel) -> Kernel:
        def kernel(tensor: torch.Tensor, *args: Any, generator: torch.Generator | None = None) -> torch.Tensor | None:
            if tensor.dtype not in _FLOATS or not _is_whole(tensor):
                return None
            if (draws_each := self._draws_each(name, original, tensor.dtype)) == 0:
                return None
            source = torch.default_generator if generator is None else generator
            draw = _with(original, args)
            recipe = Drawn(tensor.numel(), tensor.dtype, draw, source.get_state(), draws_each)
            after = recipe.state_after()
            if not _RECIPES.leave(tensor, recipe):
                return None
            source.set_state(after)
            return tensor

        return kernel

    def _draws_each(self, name: str, original: Kernel, dtype: torch.dtype) -> int:
        """Return the draws of 32 bits that a number takes; 0 where torch does not draw one after the other."""
        if (name, dtype) not in self._draws:
            self._draws[name, dtype] = next((draws for draws in (1, 2) if _draws_in_turn(original, dtype, draws)), 0)
        return self._draws[name, dtype]

    def _fill(self, name: str, original: Kernel) -> Kernel:
        def kernel(tensor: torch.Tensor, number: complex) -> torch.Tensor | None:
            if str(number) in ("0", "0.0", "False"):  # and not -0.0
                return _left_zero(tensor)
            recipe = Filled(tensor.numel(), tensor.dtype, _with(original, (number,)))
            return tensor if _is_whole(tensor) and _RECIPES.leave(tensor, recipe) else None

        return kernel

    def _copy(self, name: str, original: Kernel) -> Kernel:
        def kernel(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor | None:
            found = _unwritten(source, target.dtype) if _is_whole(target) and target.size() == source.size() else None
            return _left_copy(target, source, *found) if found is not None else None

        return kernel

    def _clone(self, name: str, original: Kernel) -> Kernel:
        def kernel(source: torch.Tensor, **options: Any) -> torch.Tensor | None:
            dtype = options.pop("dtype", None) or source.dtype
            options.pop("non_blocking", None)
            is_plain = all(value in _PLAIN.get(option, ()) for option, value in options.items())
            found = _unwritten(source, dtype) if is_plain else None
            if found is None:
                return None
            target = torch.empty_strided(source.size(), source.stride(), dtype=dtype, device="cpu")
            return _left_copy(target, source, *found)

        return kernel

    def _truncated_draw(
        self, original: Kernel, tensor: torch.Tensor, *args: Any, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        source = torch.default_generator if generator is None else generator
        if tensor.device.type != "cpu" or type(tensor.data) is not torch.Tensor or not _is_whole(tensor):
            return original(tensor, *args, generator=generator)  # type: ignore[no-any-return]
        recipe = DrawnAgain(tensor.numel(), tensor.dtype, _with(original, args), source.get_state())
        with filled_at_once():
            recipe.draw(tensor, generator=source)
        _RECIPES.leave(tensor, recipe)
        return tensor


def _with(kernel: Kernel, arguments: tuple[Any, ...]) -> Fill:
    return lambda values, **options: kernel(values, *arguments, **options)


_PLAIN: dict[str, tuple[Any, ...]] = {
    "device": (None, torch.device("cpu")),
    "layout": (None, torch.strided),
    "memory_format": (None, torch.preserve_format, torch.contiguous_format),
    "pin_memory": (None, False),
}
"""Options with which a copy is a tensor of the same strides in the host's memory."""


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return True if a tensor's elements, in order, are all that is in a storage of its own."""
    return (
        tensor.nbytes >= LEAST_BYTES
        and tensor.is_contiguous()
        and not tensor.is_complex()
        and not tensor.is_neg()
        and bool(_library().null_gpu_storage_size(tensor.data_ptr()) == tensor.nbytes)
    )


def _is_left(tensor: torch.Tensor) -> bool:
    """Return True if a part of a tensor's storage may be unwritten."""
    return bool(_library().null_gpu_recipe(tensor.untyped_storage().data_ptr(), None))


def _left_zero(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if _is_whole(tensor) and _library().null_gpu_leave(tensor.data_ptr(), 0) else None


def _unwritten(source: torch.Tensor, dtype: torch.dtype) -> tuple[Recipe, list[tuple[int, int]]] | None:
    """The recipe of a tensor's elements as another type, and those that have been written since; None without one."""
    is_simple = source.dtype == dtype or (source.dtype in _FLOATS and dtype in _FLOATS)
    found = _RECIPES.of(source) if is_simple and _is_whole(source) else None
    if found is None:
        return None
    recipe, written = found
    if 2 * sum(last - first for first, last in written) > source.numel():
        return None
    return (recipe if recipe.dtype == dtype else Mapped(recipe, recipe.num_elements, dtype)), written


def _left_copy(
    target: torch.Tensor, source: torch.Tensor, recipe: Recipe, written: list[tuple[int, int]]
) -> torch.Tensor | None:
    if not _is_whole(target) or not _RECIPES.leave(target, recipe):
        with filled_at_once():
            return target.copy_(source)
    for first, last in written:
        target.view(-1)[first:last].copy_(source.view(-1)[first:last])
    return target


def _draws_in_turn(draw: Fill, dtype: torch.dtype, draws_each: int) -> bool:
    """Return True if a tensor's numbers are those of its pieces, each drawn from where the one before has ended."""
    generator = torch.Generator().manual_seed(1)
    last = 2 * _TRIED_ELEMENTS + 21
    recipe = Drawn(last, dtype, draw, generator.get_state(), draws_each)
    whole = draw(_empty(last, dtype), generator=generator)
    ends = (0, _TRIED_ELEMENTS, 2 * _TRIED_ELEMENTS, last)
    pieces = [recipe.values(*part) for part in pairwise(ends)]
    again = Drawn(last, dtype, draw, recipe.state, draws_each)
    return (
        torch.equal(torch.cat(pieces), whole)
        and torch.equal(again.values(ends[1], ends[2]), pieces[1])
        and torch.equal(recipe.state_after(), generator.get_state())
    )
