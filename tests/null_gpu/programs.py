"""What the null GPU must stand: each function is a program that ends well or raises. Run in a process of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from tests.driver_places import SEGMENTS
from tracer.sessions.watch_report import limit_of

GIB = 1 << 30
CONTEXT = 700 << 20  # set aside of every card


def segments_lie_where_a_driver_placed_them() -> None:
    """Before there are any others."""
    runtime, placed = ctypes.CDLL(None), []
    for size, _ in SEGMENTS:
        placed.append(ctypes.c_void_p())
        assert runtime.cudaMalloc(ctypes.byref(placed[-1]), ctypes.c_size_t(size << 20)) == 0
    first = placed[0].value or 0
    assert [((place.value or 0) - first) >> 20 for place in placed] == [offset for _, offset in SEGMENTS]
    for place in placed:
        assert runtime.cudaFree(place) == 0


def device_of_the_card() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert (properties.name, properties.major, properties.minor) == ("NVIDIA H100 80GB HBM3", 9, 0)
    assert (properties.multi_processor_count, properties.L2_cache_size) == (132, 50 << 20)
    assert torch.cuda.device_count() == 1 and torch.cuda.mem_get_info()[1] == int(79.10 * GIB)


def out_of_memory_at_capacity() -> None:
    tensors = []
    try:
        while True:
            tensors.append(torch.empty(300 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total capacity of 79.10 GiB" in str(error)
    assert len(tensors) == (int(79.10 * GIB) - CONTEXT) // (300 << 20)
    tensors.clear()
    _all_is_free()


def _all_is_free() -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert free == total - CONTEXT, total - free


def fraction_of_the_card() -> None:
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        torch.empty(9 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "7.91 GiB allowed" in str(error), error
    else:
        raise AssertionError("more than the fraction")
    assert abs((limit_of(torch.device("cuda", 0)) or 0) - 0.1 * torch.cuda.mem_get_info()[1]) <= 1
    torch.cuda.set_per_process_memory_fraction(1.0)


def what_the_host_wrote_is_read() -> None:
    ids = torch.arange(1000).cuda()
    assert ids.tolist() == list(range(1000))
    assert ids.clone().tolist() == list(range(1000))
    del ids
    assert torch.empty(500, dtype=torch.int64, device="cuda").sum().item() == 0


def a_pattern_of_words_is_one_write() -> None:
    driver, kept = ctypes.CDLL(None), torch.arange(1000).cuda()
    for width, name in ((4, "cuMemsetD32_v2"), (2, "cuMemsetD16_v2")):
        words = torch.empty(70_000, dtype={4: torch.int32, 2: torch.int16}[width], device="cuda")
        fill = getattr(driver, name)
        fill(ctypes.c_void_p(words.data_ptr()), ctypes.c_uint(0x0102), ctypes.c_size_t(words.numel()))
        assert words.cpu().eq(0x0102).all()
        del words
    assert kept.tolist() == list(range(1000))


def rows_without_a_gap_are_one_write() -> None:
    rows, kept = torch.arange(70_000, dtype=torch.int32), torch.arange(1000).cuda()
    on_device = torch.empty_like(rows, device="cuda")
    width = ctypes.c_size_t(4)
    pointers = ctypes.c_void_p(on_device.data_ptr()), width, ctypes.c_void_p(rows.data_ptr()), width
    assert ctypes.CDLL(None).cudaMemcpy2D(*pointers, width, ctypes.c_size_t(70_000), 1) == 0
    assert torch.equal(on_device.cpu(), rows) and kept.tolist() == list(range(1000))


def too_many_pieces_are_said() -> None:
    copy, pieces = ctypes.CDLL(None).cudaMemcpy, torch.empty(70_000, dtype=torch.int32, device="cuda")
    word, size = ctypes.c_int(7), ctypes.c_size_t(4)
    for at in range(pieces.data_ptr(), pieces.data_ptr() + pieces.nbytes, 4):
        copy(ctypes.c_void_p(at), ctypes.byref(word), size, 1)


def what_nvml_is_asked() -> None:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle, number, zero = ctypes.c_void_p(), ctypes.c_ulonglong(7), ctypes.c_int(0)
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    for name in (
        "TemperatureV",
        "PowerUsage",
        "TotalEnergyConsumption",
        "PerformanceState",
        "ComputeMode",
        "MinorNumber",
    ):
        values = (ctypes.c_uint * 4)(7, 0, 7, 7)
        assert getattr(nvml, f"nvmlDeviceGet{name}")(handle, values) == 0, name
        assert values[2 if name == "TemperatureV" else 0] == 0, name
    for name in ("Temperature", "ClockInfo", "PcieThroughput"):
        assert getattr(nvml, f"nvmlDeviceGet{name}")(handle, zero, ctypes.byref(number)) == 0, name
        assert number.value & 0xFFFF == 0, name
    for name in ("MaxClockInfo", "EnforcedPowerLimit", "FanSpeed", "Serial", "MigMode"):
        assert getattr(nvml, f"nvmlDeviceGet{name}")(handle, zero, ctypes.byref(number)) == 3, name  # not supported
    text = ctypes.create_string_buffer(100)
    assert nvml.nvmlDeviceGetName(handle, text, 100) == 0 and text.value == b"NVIDIA H100 80GB HBM3"
    assert nvml.nvmlDeviceGetUUID(handle, text, 100) == 0 and text.value.startswith(b"GPU-")
    assert nvml.nvmlSystemGetProcessName(os.getpid(), text, 100) == 0 and b"python" in text.value
    count, processes = ctypes.c_uint(5), (ctypes.c_ulonglong * 15)()
    torch.empty(1, device="cuda")  # a process is there from its context on
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle, ctypes.byref(count), processes) == 0
    assert (count.value, processes[0]) == (1, os.getpid())


def a_linker_of_the_driver() -> None:
    driver, state, image, size = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    assert driver.cuLinkCreate_v2(0, None, None, ctypes.byref(state)) == 0
    assert driver.cuLinkAddData_v2(state, 1, b"ptx", ctypes.c_size_t(3), b"kernel", 0, None, None) == 0
    assert driver.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size)) == 0 and size.value > 0
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0
    assert driver.cuLinkDestroy(state) == 0


def a_library_of_one_kernel_from_a_file() -> None:
    driver, library, kernel, count = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint()
    nothing = (None, None, 0, None, None, 0)
    assert driver.cuLibraryLoadFromFile(ctypes.byref(library), b"/not/there.cubin", *nothing) == 301  # not found
    assert driver.cuLibraryLoadFromFile(ctypes.byref(library), os.fsencode(__file__), *nothing) == 0
    assert driver.cuLibraryGetKernelCount(ctypes.byref(count), library) == 0 and count.value == 1
    assert driver.cuLibraryEnumerateKernels(ctypes.byref(kernel), count, library) == 0 and kernel.value


def a_step_of_training() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(64, 256, device="cuda")).sum().backward()  # torch before 2.15 keeps the workspaces of cuBLAS
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    of_parameters = sum(parameter.nbytes for parameter in model.parameters())
    # Gradients and two states a parameter, their counters on the host.
    assert torch.cuda.memory_allocated() - weights == 3 * of_parameters
    assert torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated()


def convolutions_transforms_and_cells() -> None:
    x = torch.randn(8, 3, 32, 32, device="cuda")
    nn.Conv2d(3, 16, 3).cuda()(x).sum().backward()
    assert torch.fft.rfft2(x).shape == (8, 3, 32, 17)
    for cell in (nn.LSTM, nn.GRU, nn.RNN):
        cell(16, 32, 2, bidirectional=True).cuda()(torch.randn(5, 2, 16, device="cuda"))[0].sum().backward()
    torch.linalg.solve(torch.eye(16, device="cuda"), torch.ones(16, 2, device="cuda"))


def pinned_memory() -> None:
    pinned = torch.randn(1000).pin_memory()
    assert pinned.is_pinned() and not torch.randn(10).is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned)


def managed_memory_fills_no_card() -> None:
    runtime, pointer = ctypes.CDLL(None), ctypes.c_void_p()
    before = torch.cuda.mem_get_info()[0]
    assert runtime.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(100 * GIB), 1) == 0
    ctypes.memset(pointer.value or 0, 7, 1000)
    assert torch.cuda.mem_get_info()[0] == before
    assert runtime.cudaFree(pointer) == 0


def small_requests_share_a_granule() -> None:
    runtime, before = ctypes.CDLL(None), torch.cuda.mem_get_info()[0]
    pointers = [ctypes.c_void_p() for _ in range(300)]
    for pointer in pointers:
        assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(10_000)) == 0
    assert len({pointer.value for pointer in pointers}) == 300
    assert before - torch.cuda.mem_get_info()[0] == 4 << 20  # 300 times 10,240 bytes
    for pointer in pointers:
        assert runtime.cudaFree(pointer) == 0
    assert runtime.cudaFree(pointers[0]) == 1 == runtime.cudaGetLastError()  # an invalid value
    assert torch.cuda.mem_get_info()[0] == before


def many_threads() -> None:
    runtime, before = ctypes.CDLL(None), torch.cuda.mem_get_info()[0]

    def work(seed: int) -> None:
        sizes = [1 + (seed * 7919 + step * 104_729) % (3 << 20) for step in range(400)]
        held: list[tuple[ctypes.c_void_p, int]] = []
        for size in sizes:
            pointer, value = ctypes.c_void_p(), ctypes.c_int64(size)
            assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size + 8)) == 0
            assert runtime.cudaMemcpy(pointer, ctypes.byref(value), ctypes.c_size_t(8), 1) == 0
            held.append((pointer, size))
            if len(held) > 50:
                pointer, size = held.pop(seed % 50)
                assert runtime.cudaMemcpy(ctypes.byref(value), pointer, ctypes.c_size_t(8), 2) == 0
                assert value.value == size
                assert runtime.cudaFree(pointer) == 0
        assert all(runtime.cudaFree(pointer) == 0 for pointer, _ in held)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert torch.cuda.mem_get_info()[0] == before


def graphs() -> None:
    x, side = torch.zeros(100, 100, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x @ x
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an empty graph is a warning
        with torch.cuda.graph(graph):
            x @ x
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                assert torch.cuda.is_current_stream_capturing()
            torch.cuda.current_stream().wait_stream(side)
    assert not torch.cuda.is_current_stream_capturing()
    graph.replay()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            (x @ x).sum().item()
    except RuntimeError as error:
        assert "operation not permitted when stream is capturing" in str(error)
    else:
        raise AssertionError("a value was read while a graph was captured")


def time_is_counted_in_launches() -> None:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.zeros(10, device="cuda")
    elapsed = []
    for _ in range(2):
        begin.record()
        for _ in range(5):
            x.add_(1)
        end.record()
        elapsed.append(round(begin.elapsed_time(end), 2))
    assert elapsed == [5.0, 5.0]


def the_system_management_interface() -> None:
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True
    ).stdout
    assert said == "NVIDIA H100 80GB HBM3, 80998\n"


def a_function_that_nobody_wrote() -> None:
    assert ctypes.CDLL(None).cudaArrayGetInfo(None, None, None, None) == 801
    found, status = ctypes.c_void_p(), ctypes.c_int()
    entry = ctypes.CDLL(None).cudaGetDriverEntryPointByVersion
    entry(b"cuMemCreate", ctypes.byref(found), 12000, ctypes.c_ulonglong(0), ctypes.byref(status))
    assert found.value and status.value == 0
    entry(b"cuNoSuchFunction", ctypes.byref(found), 12000, ctypes.c_ulonglong(0), ctypes.byref(status))
    assert not found.value and status.value == 1


def an_allocator_of_somebody_else() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "allocator.c").write_text(
        "#include <stddef.h>\nextern int cudaMalloc(void **, size_t); extern int cudaFree(void *);\n"
        "void *get(ptrdiff_t n, int d, void *s) { void *p = 0; cudaMalloc(&p, n); return p; }\n"
        "void give(void *p, ptrdiff_t n, int d, void *s) { cudaFree(p); }\n"
    )
    library = folder / "allocator.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(folder / "allocator.c"), "-o", str(library)], check=True)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "get", "give")
    torch.cuda.memory.change_current_allocator(allocator)
    tensors = [torch.arange(1000).cuda() for _ in range(100)]
    free, total = torch.cuda.mem_get_info()
    assert tensors[7].tolist() == list(range(1000)) and 100 * 8000 < total - CONTEXT - free < 4 << 20


def expandable_segments() -> None:
    tensors = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(50)]
    assert all(segment["is_expandable"] for segment in torch.cuda.memory.memory_snapshot())
    del tensors[::2]
    assert torch.arange(1000).cuda().tolist() == list(range(1000))
    tensors.clear()
    out_of_memory_at_capacity()


def pools_of_the_driver() -> None:
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    tensor = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (100 << 20, 128 << 20)
    assert torch.arange(1000).cuda().tolist() == list(range(1000))
    del tensor
    try:
        [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(80)]
    except torch.OutOfMemoryError:
        return
    raise AssertionError("more than the card has")


def eight_devices() -> None:
    count = torch.cuda.device_count()
    assert count == 8
    for index in range(count):
        peer = (index + 1) % count
        assert torch.cuda.can_device_access_peer(index, peer)
        assert torch.arange(10, device="cpu").to(index).to(peer).tolist() == list(range(10))
    tensors = [torch.empty(70 * GIB, dtype=torch.uint8, device=index) for index in range(count)]
    assert all(torch.cuda.mem_get_info(tensor.device)[0] < 10 * GIB for tensor in tensors)


def visible_devices() -> None:
    assert torch.cuda.device_count() == 2
    torch.empty(70 * GIB, dtype=torch.uint8, device=1)


def workers_of_a_loader() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    torch.ones(4, device="cuda")
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(
            TensorDataset(torch.arange(64)), batch_size=8, num_workers=2, pin_memory=True,
            multiprocessing_context=context,
        )  # fmt: skip
        batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() for batch in batches)
        assert torch.cat(batches).tolist() == list(range(64))


def children_end_well() -> None:
    """Each ends in the middle of a backward pass: a thread of autograd's asks for Python's lock while Python ends."""

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.randn(8, 64, device="cuda")).sum().backward()

    for _ in range(4):
        if (child := os.fork()) == 0:
            model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)]).cuda()
            for parameter in model.parameters():
                parameter.register_hook(lambda gradient: gradient)
            train(2)
            threading.Thread(target=train, args=(1_000_000,), daemon=True).start()
            time.sleep(0.05)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0


def a_gradient_in_a_larger_block_is_explained() -> None:
    """Of a block from before the recording that no operator touches, its free alone says how large it is."""
    from tracer.arrays import in_use
    from tracer.sessions.schedule import Schedule
    from tracer.sessions.training_profile import profile_training

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(12_320_768 // 4, device="cuda"))  # a block of 12 MiB

        def forward(self) -> torch.Tensor:
            return (2 * self.weight).sum()

    torch.cuda.empty_cache()
    model, plan = Twice(), Schedule(0, 1, 1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        with profile_training(model, optimizer, save_dir=folder, schedule=plan) as session:
            for _ in range(plan.num_steps):
                optimizer.zero_grad()
                model().backward()
                optimizer.step()
                session.step()
        assert session.results is not None and session.results.findings is not None
    lives = session.results.findings.parts[0].source.lifetimes
    assert (12 << 20) in lives.size_bytes[lives.made_at < 0].tolist()
    levels = in_use(lives.size_bytes, lives.made_at, lives.freed_at, len(lives.events))[1:]
    assert levels.tolist() == lives.allocator_bytes.tolist()


def scratch_of_a_transform() -> None:
    """As large as cuFFT 12 said on an H100 for these sizes, see fft.c."""
    for shape, axes, is_real, said in (
        ((16, 64, 64), 2, False, 0),
        ((256, 85, 85), 2, False, 14796800),
        ((16, 421, 421), 2, True, 22687296),
        ((64, 1009), 1, True, 517376),
        ((64, 4099), 1, False, 8847360),
        ((64, 65536), 1, False, 33554432),
    ):
        field = torch.zeros(shape, dtype=torch.float32 if is_real else torch.complex64, device="cuda")
        transform = torch.fft.rfftn if is_real else torch.fft.fftn
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = transform(field, dim=tuple(range(-axes, 0)))
        scratch = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before - result.nbytes
        assert abs(scratch - said) <= 1024 + 0.01 * said, (shape, scratch)


def scratch_of_recurrent_layers() -> None:
    """What torch asked for on an H100 in a forward and in a backward pass, at its most, with cuDNN 9.19."""
    for kind, dtype, layers, both, dropout, samples, steps, width, hidden, forward, backward in (
        (nn.LSTM, torch.float32, 1, False, 0.0, 32, 50, 64, 128, 31507200, 27398656),  # of persistent kernels
        (nn.LSTM, torch.float32, 2, True, 0.2, 64, 100, 256, 512, 585958400, 314114816),
        (nn.GRU, torch.float16, 3, False, 0.0, 20, 35, 650, 650, 65102672, 62135816),
        (nn.RNN, torch.float32, 3, False, 0.0, 20, 35, 650, 650, 57458496, 58513840),
    ):
        layer = kind(width, hidden, layers, bidirectional=both, dropout=dropout).to("cuda", dtype)
        x = torch.randn(steps, samples, width, device="cuda", dtype=dtype, requires_grad=True)
        for _ in range(2):
            before = _requested()
            output, last = layer(x)
            of_forward = _requested("peak") - before
            gradient = torch.ones_like(output)
            before = _requested()
            output.backward(gradient)
            of_backward = _requested("peak") - before
            del output, last, gradient
            layer.zero_grad()
            x.grad = None
        assert abs(of_forward / forward - 1) < 0.015, (kind, of_forward)
        assert abs(of_backward / backward - 1) < 0.015, (kind, of_backward)


def _requested(which: str = "current") -> int:
    """Bytes that are asked for now, or were at most since that was asked last."""
    found: int = torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]
    torch.cuda.reset_peak_memory_stats()
    return found


def compiled() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda())
    model(torch.randn(8, 64, device="cuda")).sum().backward()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
