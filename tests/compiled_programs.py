"""Compiled programs and what is found out about them, printed as JSON: run in a process of its own.

    python -m tests.compiled_programs gpt resnet

Each program trains under a session, compiled and not, and is asked how much of what its compiled regions hold at the
peak has a line and a module, whether those lines allocate without torch.compile too, and what AOTAutograd saves.
"""

from __future__ import annotations

import ast
import gc
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.fno import FNO
from models.gpt import GPT, next_token_loss
from models.resnet import ResNet
from tests.training_steps import torch_timeline
from tracer import MemoryTimeline, profile_training
from tracer.answers.caveats import compiled_sentences
from tracer.answers.findings import CycleFindings
from tracer.blocks.from_recording.blocks import origin_of
from tracer.blocks.kinds import Evidence, Kind
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.sessions.schedule import Schedule

Batch = tuple[Tensor, ...]
LossOf = Callable[..., Tensor]


@dataclass
class Program:
    """A model, what it is trained on, and what of it is compiled.

    `loss_of` is what a step calls with a batch; `compiled` makes what is called instead when it is to be compiled.
    """

    model: nn.Module
    next_batch: Callable[[], Batch]
    loss_of: LossOf
    compiled: Callable[[], LossOf]
    optimizer: torch.optim.Optimizer
    step_optimizer: Callable[[], object] | None = None


def _whole_model(
    model: nn.Module, next_batch: Callable[[], Batch], loss: LossOf, optimizer: torch.optim.Optimizer, **options: Any
) -> Program:
    def compiled() -> LossOf:
        call = torch.compile(model, **options)
        return lambda x, y: loss(call(x), y)

    return Program(model, next_batch, lambda x, y: loss(model(x), y), compiled, optimizer)


def gpt() -> Program:
    model = GPT(vocabulary=64, context=32, width=32, n_layers=2, n_heads=2)

    def next_batch() -> Batch:
        tokens = torch.randint(64, (8, 33))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return _whole_model(model, next_batch, next_token_loss, torch.optim.AdamW(model.parameters()))


def resnet() -> Program:
    model = ResNet(blocks=(1, 1), width=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _whole_model(model, lambda: (torch.randn(4, 3, 32, 32), torch.randint(10, (4,))), F.cross_entropy, optimizer)


def fno() -> Program:
    """Complex numbers, and transforms that Inductor leaves to torch."""
    model = FNO((4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    optimizer = torch.optim.Adam(model.parameters())
    return _whole_model(model, lambda: (torch.randn(4, 1, 16, 16), torch.randn(4, 1, 16, 16)), F.mse_loss, optimizer)


class Broken(nn.Module):
    """torch.compile has to leave it in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.before(x).relu()
        torch._dynamo.graph_break()
        return self.after(hidden).sigmoid()


def _pairs() -> Batch:
    return torch.randn(256, 64), torch.randn(256, 32)


def graph_break() -> Program:
    model = Broken()
    return _whole_model(model, _pairs, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))


class Mlp(nn.Module):
    """With code of its own, so that there are lines to name."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.wide(x))
        return self.narrow(hidden)


def _mlp() -> nn.Module:
    return Mlp()


def graph_break_eager() -> Program:
    model = Broken()
    return _whole_model(model, _pairs, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), backend="aot_eager")


def compiled_before() -> Program:
    """It is called before the session begins."""
    program = step_function()

    def compiled() -> LossOf:
        call = torch.compile(program.loss_of, fullgraph=True)
        call(*program.next_batch()).backward()
        program.optimizer.zero_grad()
        return call

    return replace(program, compiled=compiled)


def step_function() -> Program:
    """Forward and loss in one compiled function that closes over the model; the optimizer's step is another one."""
    model = _mlp()
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        hidden = model(x)
        return F.mse_loss(hidden, y)

    return Program(model, _pairs, loss_of, lambda: torch.compile(loss_of, fullgraph=True), optimizer)


def aot_eager() -> Program:
    model = _mlp()
    return _whole_model(model, _pairs, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), backend="aot_eager")


def _layers_of_torch(**options: Any) -> Program:
    """A model without code of its own: no line is in it, and what it allocates has the one that calls it."""
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
    return _whole_model(model, _pairs, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def layers_of_torch() -> Program:
    return _layers_of_torch()


def layers_of_torch_eager() -> Program:
    return _layers_of_torch(backend="aot_eager")


def dynamic_shapes() -> Program:
    model, sizes = _mlp(), [128, 192, 256, 320, 384, 448, 512]

    def next_batch() -> Batch:
        sizes.append(sizes.pop(0))
        return torch.randn(sizes[0], 64), torch.randn(sizes[0], 32)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _whole_model(model, next_batch, F.mse_loss, optimizer, backend="aot_eager")


def part_of_a_model() -> Program:
    """The model holds the wrapper of a compiled part of it."""
    model = nn.Sequential(nn.Linear(64, 64), _mlp(), nn.LayerNorm(32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def compiled() -> LossOf:
        model[1] = torch.compile(model[1], backend="aot_eager")  # type: ignore[assignment]
        return lambda x, y: F.mse_loss(model(x), y)

    return Program(model, _pairs, lambda x, y: F.mse_loss(model(x), y), compiled, optimizer)


def optimizer_step() -> Program:
    model = _mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    loss_of: LossOf = lambda x, y: F.mse_loss(model(x), y)  # noqa: E731
    step = torch.compile(optimizer.step, backend="aot_eager")
    return Program(model, _pairs, loss_of, lambda: loss_of, optimizer, step)


class Checkpointed(nn.Module):
    """Its blocks keep their inputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
        return self.head(x)


class Block(nn.Module):
    """With noise, which backward has to draw again."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.wide(x))
        hidden = F.dropout(hidden, 0.2)
        return self.narrow(hidden)


def checkpointed() -> Program:
    model = Checkpointed()
    return _whole_model(model, _pairs, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))


def checkpointed_eager() -> Program:
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _whole_model(model, _pairs, F.mse_loss, optimizer, backend="aot_eager")


def memory_budget() -> Program:
    """Half of what forward would keep for backward."""
    program = aot_eager()

    def compiled() -> LossOf:
        import torch._functorch.config as functorch_config

        call = program.compiled()

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with functorch_config.patch(activation_memory_budget=0.5):
                loss: Tensor = call(x, y)
            return loss

        return loss_of

    return replace(program, compiled=compiled)


PROGRAMS = (gpt, resnet, fno, graph_break, step_function, checkpointed, layers_of_torch)
WITHOUT_INDUCTOR = (
    aot_eager,
    graph_break_eager,
    dynamic_shapes,
    part_of_a_model,
    optimizer_step,
    checkpointed_eager,
    memory_budget,
    layers_of_torch_eager,
)
BEFORE = (compiled_before,)
SCHEDULE = Schedule(num_wait_steps=2, num_warmup_steps=1, num_active_steps=2, num_repeats=1)


class Steps:
    """A program's training; notes what the compiled forward of the last step saved, in bytes of distinct storages."""

    def __init__(self, program: Program, call: LossOf) -> None:
        self.program, self.call = program, call
        self.batch_bytes: list[int] = []
        self.saved: list[dict[int, int]] = []

    def __call__(self) -> None:
        program, batch = self.program, self.program.next_batch()
        self.batch_bytes.append(sum(one.untyped_storage().nbytes() for one in batch))
        loss = self.call(*batch)
        self.saved.append(self._saved(loss, batch))
        loss.backward()
        (program.step_optimizer or program.optimizer.step)()
        program.optimizer.zero_grad()

    def _saved(self, loss: Tensor, batch: Batch) -> dict[int, int]:
        """Bytes by address."""
        given = (*self.program.model.parameters(), *self.program.model.buffers(), *batch)
        not_made = {one.untyped_storage().data_ptr() for one in given}
        found = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in _saved_by_compiled(loss)}
        return {address: size for address, size in found.items() if address not in not_made}


def _saved_by_compiled(loss: Tensor) -> Iterator[Tensor]:
    """What the compiled nodes of a graph keep, as AOTAutograd saved it."""
    seen, rest = set(), [loss.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        rest += [after for after, _ in node.next_functions]
        if "CompiledFunction" in type(node).__name__:
            yield from (one for one in node.saved_tensors if one is not None)  # type: ignore[attr-defined]


def trained(program: Program, call: LossOf, folder: Path) -> tuple[Steps, Any, list[Any]]:
    """The program's steps, the session that saw them, and the profiler's recordings."""
    steps = Steps(program, call)
    results: list[Any] = []  # a session lets go of each as soon as it has read it

    def read_and_keep(result: Any) -> Recording:
        results.append(result)
        return read_recording(result)

    with (
        mock.patch("tracer.sessions.timeline_tracer.read_recording", read_and_keep),
        profile_training(
            program.model, program.optimizer, save_dir=folder, schedule=SCHEDULE, keep_recording=True
        ) as session,
    ):
        for _ in range(SCHEDULE.num_steps):
            steps()
            session.step()
    assert session.fault is None, session.fault
    assert session.results is not None and session.results.findings is not None
    return steps, session, results


def allocating_lines(cycle: CycleFindings) -> set[tuple[str, int]]:
    """Every line that an allocation of a recording is of."""
    made = cycle.source.recording.allocations.size_bytes > 0
    frames, strings = cycle.source.recording.frames, cycle.source.recording.strings
    rows = np.unique(
        np.concatenate(
            [cycle.source.attribution.allocation_frame[made], cycle.source.attribution.allocation_caller[made]]
        )
    )
    return {(strings[frames.file[row]], int(frames.line[row])) for row in rows.tolist() if row >= 0}


def lines_of(cycle: CycleFindings, evidence: Evidence) -> set[tuple[str, int]]:
    """The lines of all blocks that are known in a way."""
    frames, strings = cycle.source.recording.frames, cycle.source.recording.strings
    rows = np.unique(cycle.blocks.frame[cycle.blocks.evidence == evidence]).tolist()
    return {(strings[frames.file[row]], int(frames.line[row])) for row in rows if row >= 0}


def figures(name: str, build: Callable[[], Program]) -> dict[str, Any]:
    """All that is asked of a program."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        eager = build()
        eager_cycle = trained(eager, eager.loss_of, Path(folder))[1].results.findings.worst
        eager_lines, eager_again = allocating_lines(eager_cycle), lines_of(eager_cycle, Evidence.RECOMPUTED)
        del eager, eager_cycle
        torch._dynamo.reset()
        gc.collect()
        program, before = build(), _switches()
        steps, session, results = trained(program, program.compiled(), Path(folder))
        after = _switches()
        again = _reported_again(Path(folder))
    findings = session.results.findings
    cycle, peak = findings.worst, findings.worst.peak
    found: dict[str, Any] = {"name": name, "peak_bytes": peak.peak_bytes}
    found |= {"rows_bytes": sum(row.bytes for row in peak.rows), "unexplained_bytes": peak.unexplained_bytes}
    found |= {"input_bytes": peak.by_category().get("INPUT", 0), "batch_bytes": max(steps.batch_bytes)}
    found |= {"report_is_same": again, "watch_fault": repr(session.compile_watch.fault)}
    total = dict.fromkeys(("compiled", "with_line", "with_module", "in_module"), 0)
    lines = set()
    columns = (peak.blocks.row, peak.blocks.size_bytes, peak.blocks.module, peak.blocks.frame)
    for allocation, size_bytes, module, frame in zip(*(column.tolist() for column in columns), strict=True):
        if (origin := origin_of(cycle.source.attribution, allocation)) is None:
            continue
        total["compiled"] += size_bytes
        total["with_line"] += size_bytes if frame >= 0 else 0
        if origin.line is not None:
            lines.add(tuple(origin.line))
            if origin.node is not None and origin.node.module_id >= 0:
                total["in_module"] += size_bytes
                total["with_module"] += size_bytes * (module >= 0)
    saved = steps.saved[-2]  # of the last recorded step: one more comes behind it
    said, kept = _in_last_step(cycle, Evidence.COMPILED_SAVED), _in_last_step(cycle, Kind.ACTIVATION)
    return (
        found
        | {
            "bytes": total,
            "lines_not_in_eager": sorted(f"{Path(file).name}:{line}" for file, line in lines - eager_lines),  # type: ignore[arg-type]
            "again": sorted(line for _, line in lines_of(cycle, Evidence.COMPILED_RECOMPUTED)),
            "again_in_eager": sorted(line for _, line in eager_again),
            "said_saved_bytes": sum(size for _, size in said),
            "said_and_not_saved": sorted(size for address, size in said if saved.get(address) != size),
            "saved_and_no_activation": sorted(
                size for block in saved.items() if block not in kept for size in block[1:]
            ),
            "modules": sorted({row.module for row in peak.rows if row.module}),
            "known_names": sorted(session.observed.storages.observations().names),
            "sentences": compiled_sentences(findings),
            "left_behind": [name for name, value in before.items() if value is not None and after[name] != value],
            "is_torchs_timeline": all(map(_is_torchs_timeline, results)),
            "is_same_code": build in WITHOUT_INDUCTOR
            or {_code(graph.text) for graph in findings.compiled.graphs if graph.nodes} <= set(_codes(build)),
        }
    )


def _is_torchs_timeline(results: Any) -> bool:
    ours_ns, ours = MemoryTimeline.from_profiler(results, "cpu").coalesce()
    times, sizes = torch_timeline(results)._coalesce_timeline("cpu")
    return bool(ours_ns.tolist() == times and ours.tolist() == sizes)


def _switches() -> dict[str, Any]:
    """All that a session may switch; None where torch has not loaded it."""
    lowering = getattr(sys.modules.get("torch._inductor.graph"), "GraphLowering", None)
    found = {"compile_to_module": getattr(lowering, "compile_to_module", None)}
    for name, option in (("_inductor", "fx_graph_cache"), ("_functorch", "enable_autograd_cache")):
        found[option] = getattr(sys.modules.get(f"torch.{name}.config"), option, None)
    return found


def _code(text: str) -> str:
    """Code without its comments."""
    return ast.unparse(ast.parse(text))


def _codes(build: Callable[[], Program]) -> list[str]:
    """What Inductor writes for a program that nobody watches, those graphs that its last step runs."""
    lowering = getattr(sys.modules.get("torch._inductor.graph"), "GraphLowering", None)
    if lowering is None:
        return []
    torch._dynamo.reset()
    torch.manual_seed(0)
    program = build()
    codes: list[str] = []
    lowering.save_output_code = codes.append
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        steps = Steps(program, program.compiled())
        for _ in range(2):
            steps()
    lowering.save_output_code = None
    return sorted(map(_code, codes))


def _in_last_step(cycle: CycleFindings, what: Evidence | Kind) -> set[tuple[int, int]]:
    """Address and bytes of the blocks of the last recorded step that are of a kind, or known in a way."""
    last = cycle.blocks.values.index(cycle.source.attribution.step_names[-1])
    column = cycle.blocks.kind if isinstance(what, Kind) else cycle.blocks.evidence
    rows = (column == what) & (cycle.blocks.step == last)
    return set(zip(cycle.blocks.address[rows].tolist(), cycle.blocks.size_bytes[rows].tolist(), strict=True))


def _reported_again(folder: Path) -> bool:
    """Whether the files made from the kept recording are those of the run."""
    from tracer.exporters.json_documents.peak import peak_document
    from tracer.exporters.recording_file.kept_run_file import load_kept_run
    from tracer.sessions.stored_results import results_of

    again = results_of(load_kept_run(folder / "recording.npz"))
    assert again.findings is not None
    written = json.loads((folder / "peak.json").read_text())
    return bool(json.loads(json.dumps(peak_document(again))) == written)


def main(names: list[str]) -> None:
    """Print one line of JSON for each program."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for build in (*PROGRAMS, *WITHOUT_INDUCTOR, *BEFORE):
        if build.__name__ in names:
            print(json.dumps(figures(build.__name__, build)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
