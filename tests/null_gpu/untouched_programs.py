"""Programs with large tensors on the host, which stay unwritten until they are read. Run on the null GPU."""

from __future__ import annotations

import copy
import ctypes
import faulthandler
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tracer.null_gpu.values.switch import HostValues
from tracer.null_gpu.values.untouched import filled_at_once

MIB = 1 << 20


def num_made() -> int:
    """Pieces of storages that somebody has touched so far."""
    return int(ctypes.CDLL(None).null_gpu_num_made())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaves(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    if isinstance(made, nn.Module):
        return list(made.state_dict().values())
    return [leaf for each in made for leaf in leaves(each)]


def same_bytes(found: torch.Tensor, expected: torch.Tensor) -> bool:
    bits = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (found, expected)]
    return found.dtype == expected.dtype and found.stride() == expected.stride() and torch.equal(*bits)


def assert_same(make: Callable[[], Any], *, most_pieces: int | None = None) -> None:
    """Assert that the values are those that torch makes, and that the generator has gone as far.

    Args:
        most_pieces: That may be touched before the values are looked at.
    """
    torch.manual_seed(7)
    with filled_at_once():
        expected = [leaf.detach().clone() for leaf in leaves(make())]
        drawn = torch.rand(3)
    before = num_made()
    torch.manual_seed(7)
    found = leaves(make())
    assert torch.equal(torch.rand(3), drawn)
    assert most_pieces is None or num_made() - before <= most_pieces, num_made() - before
    for number, (tensor, values) in enumerate(zip(found, expected, strict=True)):
        assert same_bytes(tensor, values), (number, tensor.shape, tensor.dtype)


def drawn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype).normal_(0.5, 0.02)


# ----------------------------------------------------------------------------------------------------- unwritten
def _normal(empty: Callable[[], torch.Tensor]) -> torch.Tensor:
    return empty().normal_(1, 3)


def _uniform(empty: Callable[[], torch.Tensor]) -> torch.Tensor:
    return empty().uniform_(-1, 3)


def what_fills_a_tensor() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for size in ((1024, 2048), (1_500_007,), (3, 700_001), (2_097_152 + 16,)):
            empty = partial(torch.empty, size, dtype=dtype)
            assert_same(partial(_normal, empty), most_pieces=0)
            assert_same(partial(_uniform, empty), most_pieces=0)
            assert_same(partial(torch.full, size, 1.5, dtype=dtype), most_pieces=0)
    assert_same(
        lambda: [torch.randn(999, 1001), torch.rand(1001, 999), torch.ones(10**6), torch.zeros(10**6)], most_pieces=0
    )
    assert_same(lambda: [torch.full((10**6,), -0.0), torch.full((10**6,), 3, dtype=torch.int32)], most_pieces=0)
    assert_same(lambda: [torch.zeros_like(drawn(700, 700)), torch.empty(10**6).exponential_(), torch.randperm(10**6)])
    assert_same(lambda: [drawn(700, 700).bernoulli_(0.3), torch.randint(9, (10**6,)), torch.randn(10**6) * 0.02])


def _initialised(name: str) -> torch.Tensor:
    tensor: torch.Tensor = getattr(nn.init, name)(torch.empty(600, 700))
    return tensor


def _cast(dtype: torch.dtype) -> torch.Tensor:
    return drawn(1024, 1025).to(dtype)


def modules_and_their_initialisers() -> None:
    assert_same(lambda: nn.Linear(1024, 1025), most_pieces=0)
    assert_same(lambda: [nn.Embedding(5000, 512), nn.Conv2d(512, 512, 3)], most_pieces=0)
    assert_same(lambda: nn.Embedding(5000, 512, padding_idx=7), most_pieces=1)
    assert_same(lambda: nn.LSTM(512, 512), most_pieces=0)
    assert_same(lambda: nn.TransformerEncoderLayer(512, 8), most_pieces=0)
    for name in ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "zeros_", "ones_"):
        assert_same(partial(_initialised, name), most_pieces=0)
    assert_same(lambda: nn.init.trunc_normal_(torch.empty(600, 700), std=0.02), most_pieces=0)
    assert_same(lambda: nn.init.trunc_normal_(torch.empty(600, 700), std=1, a=0.5, b=2), most_pieces=0)
    assert_same(lambda: nn.init.orthogonal_(torch.empty(600, 700)))
    assert_same(lambda: nn.init.sparse_(torch.empty(600, 700), 0.1))
    assert_same(lambda: nn.init.eye_(torch.empty(600, 700)))


def generators_of_the_program() -> None:
    def make() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        made = [torch.randn(10**6, generator=generator), torch.empty(999_999).uniform_(generator=generator)]
        return [*made, torch.randn(5, generator=generator), generator.get_state()]

    assert_same(make, most_pieces=0)
    before = torch.get_rng_state()
    for draw in (lambda tensor: tensor.normal_(0, -1), lambda tensor: tensor.uniform_(2, 1)):
        try:
            draw(torch.empty(10**6))
        except RuntimeError:
            assert torch.equal(torch.get_rng_state(), before)
        else:
            raise AssertionError("torch refuses it")


def copies_of_tensors() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float32):
        assert_same(partial(_cast, dtype), most_pieces=0)
    assert_same(lambda: copy.deepcopy(nn.Linear(1024, 1024)), most_pieces=0)
    assert_same(lambda: nn.Linear(1024, 1024).bfloat16().float(), most_pieces=0)
    assert_same(lambda: [drawn(10**6).clone(), drawn(10**6).int(), drawn(10**6).to(torch.complex64)])

    def loaded() -> nn.Module:
        target = nn.Linear(1024, 1024).half()
        target.load_state_dict(nn.Linear(1024, 1024).state_dict())
        return target

    assert_same(loaded, most_pieces=0)

    def changed_later() -> list[torch.Tensor]:
        source = drawn(1024, 1024)
        source[3] = 1
        taken = [source.half(), source.clone()]
        source[5] = 2
        source.fill_(3)
        return [*taken, source]

    assert_same(changed_later, most_pieces=8)

    def mostly_written() -> torch.Tensor:
        source = drawn(1024, 1024)
        source[:1000] *= 2
        return source.half()

    assert_same(mostly_written)


def memory_is_not_taken() -> None:
    torch.cuda.init()
    before = resident_bytes()
    weights = [nn.Linear(4096, 4096) for _ in range(8)]
    halves = [copy.deepcopy(weight).half() for weight in weights]
    on_device = [weight.to("cuda") for weight in (*weights, *halves)]
    assert resident_bytes() - before < 40 * MIB, on_device
    large = torch.randn(100 * MIB)
    assert abs(float(large.mean())) < 1e-3
    assert resident_bytes() - before < 300 * MIB  # of 400, and the oldest pieces go
    assert float(large[0]) == float(large[:1024].clone()[0])
    del large
    tensor = torch.empty(30 * MIB).fill_(1)
    tensor += 1
    assert resident_bytes() - before > 120 * MIB
    del tensor
    assert resident_bytes() - before < 300 * MIB


def all_are_written() -> None:
    before, tensor = resident_bytes(), torch.zeros(10 * MIB).fill_(1)
    assert resident_bytes() - before > 39 * MIB
    assert float(tensor[-1]) == 1 and not num_made()


# ----------------------------------------------------------------------------------------------------- who reads
def readers_of_python() -> None:
    torch.manual_seed(0)
    with filled_at_once():
        expected = drawn(1024, 1025)
    for read in (
        lambda tensor: tensor.abs().max().item(),
        lambda tensor: tensor[1000, 1000].item(),
        lambda tensor: tensor.tolist(),
        lambda tensor: str(tensor),
        lambda tensor: hash(tensor.numpy().tobytes()),
        lambda tensor: np.asarray(tensor).sum(),
        lambda tensor: np.from_dlpack(tensor).max(),
        lambda tensor: ctypes.string_at(tensor.data_ptr(), tensor.nbytes),
        lambda tensor: bytes(memoryview(tensor.numpy()))[-100:],
        lambda tensor: tensor.untyped_storage()[12345],
        lambda tensor: torch.equal(tensor, expected),
        lambda tensor: torch.equal(expected, tensor.t().contiguous().t()),
        lambda tensor: tensor.to(torch.float64).t().sum().item(),
        lambda tensor: pickle.dumps(tensor)[-100:],
        lambda tensor: tensor.pin_memory().sum().item(),
        lambda tensor: tensor.share_memory_().sum().item(),
        lambda tensor: torch.cat([tensor, tensor]).sum().item(),
        lambda tensor: np.linalg.svd(tensor.numpy()[:50, :50])[1].sum(),
    ):
        torch.manual_seed(0)
        tensor = drawn(1024, 1025)
        pieces = num_made()
        assert read(tensor) == read(expected)
        assert num_made() > pieces


def views_of_before_and_after() -> None:
    def make() -> list[torch.Tensor]:
        tensor = torch.zeros(1024, 1024)
        array, rows = tensor.numpy(), tensor[10:20]
        tensor.normal_()
        first = torch.from_numpy(array.copy())
        rows.mul_(2)
        array[0, 0] = 5
        tensor.t()[3].fill_(7)
        tensor.view(-1)[::4097].zero_()
        tied = nn.Linear(1024, 1024, bias=False)
        tied.weight = nn.Parameter(tensor)
        tied.weight.data[5:6].zero_()
        return [first, tensor, rows, tied.weight]

    assert_same(make)


def files_and_pipes() -> None:
    torch.manual_seed(1)
    with filled_at_once():
        expected = drawn(1024, 1025)
    data = expected.numpy().tobytes()

    def tensor() -> torch.Tensor:
        torch.manual_seed(1)
        return drawn(1024, 1025)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        torch.save({"w": tensor()}, path)
        assert torch.equal(torch.load(path)["w"], expected)
        memory = io.BytesIO()
        torch.save(tensor(), memory)
        memory.seek(0)
        assert torch.equal(torch.load(memory), expected)
        for write in (
            lambda file: file.write(tensor().numpy().data.cast("B")),
            lambda file: os.write(file.fileno(), tensor().numpy().data),
            lambda file: os.pwrite(file.fileno(), tensor().numpy().data, 0),
            lambda file: os.writev(file.fileno(), [b"", tensor().numpy().data]),
            lambda file: tensor().numpy().tofile(file),
        ):
            with path.open("wb", buffering=0) as file:
                write(file)
            assert path.read_bytes() == data
        np.save(path.with_suffix(".npy"), tensor().numpy())
        assert np.array_equal(np.load(path.with_suffix(".npy")), expected.numpy())
        with path.open("rb", buffering=0) as file:
            target = torch.ones(1024, 1025)
            file.readinto(target.numpy().data.cast("B"))
        assert torch.equal(target, expected)
        target = torch.ones(1024, 1025)
        with path.open("rb") as buffered:
            os.preadv(buffered.fileno(), [target.numpy().data], 0)
        assert torch.equal(target, expected)
        from safetensors.torch import load_file, save_file

        save_file({"w": tensor()}, path)
        assert torch.equal(load_file(path)["w"], expected)
    copied = subprocess.run(["cat"], input=tensor().numpy().data.cast("B"), stdout=subprocess.PIPE, check=True).stdout
    assert copied == data


class _Rows(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.table = torch.randn(1024, 1024)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.table[row]


def processes_and_threads() -> None:
    torch.manual_seed(2)
    with filled_at_once():
        expected = _Rows().table
    torch.manual_seed(2)
    rows = _Rows()
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(rows.table[-1], expected[-1]) and torch.equal(rows.table.clone(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(torch.cat(list(DataLoader(rows, batch_size=2, num_workers=2))), expected[:8])
    again = torch.randn(4096, 1024)
    sums: list[float] = []
    threads = [threading.Thread(target=lambda: sums.append(float(again.sum()))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(sums)) == 1
    torch.set_num_threads(2)
    large, target = torch.randn(8 * MIB), torch.zeros(8 * MIB, dtype=torch.float64)
    target.copy_(large[: 8 * MIB])
    assert float(torch.randn(8 * MIB).add(1).mean()) != 0
    assert np.allclose(target.numpy().sum(), large.double().sum().item())
    torch.set_num_threads(1)


def threads_that_fill() -> None:
    """Each finds its own numbers, and the first ones have waited for the thread that makes them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong: list[float] = []

    def fill(first: int) -> None:
        for number in range(first, first + 40):
            if (found := float(torch.full((300_000,), number)[0])) != number:
                wrong.append(found)

    threads = [threading.Thread(target=fill, args=(1000 * first + 1,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert not wrong


def one_call_for_many_pieces() -> None:
    tensor = torch.full((530 * MIB // 8,), 1.5, dtype=torch.float64)
    file = os.memfd_create("tensor")
    assert os.write(file, tensor.numpy().data) == tensor.nbytes
    os.close(file)


def a_library_that_waits_with_the_lock_of_python() -> None:
    """As a compiled kernel does for its threads of OpenMP, which read."""
    process, thread, length = ctypes.PyDLL(None), ctypes.c_ulong(), ctypes.c_size_t()
    tensor = torch.full((MIB,), 0x01010101, dtype=torch.int32)
    tensor[-1] = 1
    arguments = (ctypes.byref(thread), None, process.strlen, ctypes.c_void_p(tensor.data_ptr()))
    assert process.pthread_create(*arguments) == 0
    assert process.pthread_join(thread, ctypes.byref(length)) == 0
    assert length.value == tensor.nbytes - 3


def written_in_place() -> None:
    def num_mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    before, tensor = num_mappings(), torch.full((200 * MIB // 8,), 1.5, dtype=torch.float64)
    threads = [threading.Thread(target=tensor[first::2].mul_, args=(2,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bool((tensor == 3).all())
    assert num_mappings() - before < 50


class _Late:
    def __init__(self) -> None:
        self.array = torch.randn(1024, 1024).numpy()

    def __del__(self) -> None:
        assert self.array[5, 5] == self.array[-1, -1] == 0


def a_destructor_when_python_ends() -> None:
    globals()["late"] = _Late()


def faults_of_the_program() -> None:
    """A wild pointer ends it still, and its own handler is told."""
    for is_handled in (False, True):
        drawn(1024, 1024)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(write, 2)
            if is_handled:
                faulthandler.enable(all_threads=False)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 20))
            assert drawn(1024, 1024).sum() > 0
            ctypes.string_at(8)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            assert ("Segmentation fault" in said.read()) == is_handled
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def many_small_tensors() -> None:
    """torch's own kernel comes back, and what is unwritten by then is made all the same."""
    torch.manual_seed(3)
    before, number = drawn(1024, 1024), torch.zeros(1)
    for _ in range(6_000):
        number.fill_(2)
    pieces = num_made()
    torch.full((1024, 1024), 2.0)
    assert float(torch.full((1024, 1024), 2.0)[0, 0]) == 2 and num_made() == pieces
    assert torch.empty(()).copy_(torch.tensor(2)).to(torch.float64) == 2
    with filled_at_once():
        torch.manual_seed(3)
        assert torch.equal(drawn(1024, 1024), before)


OPERATIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "normal": lambda tensor, number: tensor.normal_(number, 1),
    "uniform": lambda tensor, number: tensor.uniform_(0, 1 + number),
    "fill": lambda tensor, number: tensor.fill_(number),
    "zero": lambda tensor, number: tensor.zero_(),
    "truncated": lambda tensor, number: nn.init.trunc_normal_(tensor),
    "row": lambda tensor, number: _with_row(tensor, number),
    "half": lambda tensor, number: tensor.half(),
    "float": lambda tensor, number: tensor.float(),
    "double": lambda tensor, number: tensor.double(),
    "clone": lambda tensor, number: tensor.clone(),
    "scaled": lambda tensor, number: tensor * number,
    "scaled in place": lambda tensor, number: tensor.mul_(number),
    "turned": lambda tensor, number: tensor.t().contiguous().view(tensor.size()),
    "stored": lambda tensor, number: torch.from_numpy(tensor.numpy().copy()),
    "copied into another": lambda tensor, number: torch.rand(tensor.size()).copy_(tensor),
    "drawn small": lambda tensor, number: _with_draw(tensor),
    "part": lambda tensor, number: _with_part(tensor, number),
}


def _with_row(tensor: torch.Tensor, number: int) -> torch.Tensor:
    tensor[number * 100].fill_(3)
    return tensor


def _with_draw(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[:7].normal_()
    return tensor


def _with_part(tensor: torch.Tensor, number: int) -> torch.Tensor:
    tensor[100:].uniform_(0, number + 1)
    return tensor


def chains_of_operations() -> None:
    chains = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 3)), max_size=6)

    @settings(max_examples=20, deadline=None, database=None)
    @given(chains, st.sampled_from([(512, 600), (513, 1029), (800, 800)]))
    def is_the_same(chain: list[tuple[str, int]], size: tuple[int, int]) -> None:
        def make() -> list[torch.Tensor]:
            tensors = [torch.empty(size).normal_()]
            for name, number in chain:
                tensors.append(OPERATIONS[name](tensors[-1], number))
            return tensors

        assert_same(make)

    is_the_same()


if __name__ == "__main__":
    values = HostValues()
    for program in sys.argv[1:]:
        globals()[program]()
        print(program, flush=True)
    values.close()
