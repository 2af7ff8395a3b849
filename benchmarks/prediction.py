"""Predictions beside published measurements of other people's runs, and beside what other estimators said of them.

    python -m benchmarks.prediction                          every published run that can be built
    python -m benchmarks.prediction --rows xmem first        those whose name begins so
    python -m benchmarks.prediction --each                   a line for every run
    python -m benchmarks.prediction --cudnn                  with the workspaces that the cuDNN here would take
    python -m benchmarks.prediction --cudnn FOLDER           that the one would which pip installed there
    python -m benchmarks.prediction --cudnn --deterministic  of its engines those that give the same result each time
    python -m benchmarks.prediction --kinds cnn              convolution networks alone

Needs ../shared/truth and says so without it. The runs of transformers were measured with version 4.51.3:
`uv run --with transformers==4.51.3 --group integrations python -m benchmarks.prediction`; timm's rows need timm, and
LitGPT's litgpt.

Each run is made on the null GPU in a process of its own, by torch's own CUDA code and allocator, with the card's memory
less 250 MiB for the driver's context. Convolutions' workspaces are left out unless asked for: the runs had other
versions of cuDNN, which choose otherwise. CUBLAS_WORKSPACE_CONFIG is heeded. No number is fitted to the runs, except
one constant for whole-device figures of each collection, the median of what is left, which is printed. Seconds are the
process's own, building included and imports not; host memory is the highest resident set of that process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from benchmarks.engine import as_markdown
from benchmarks.published_on_null_gpu import on_null_gpu
from benchmarks.published_programs import Unknown
from benchmarks.published_runs import TRUTH, PublishedRun, published_runs
from tracer.null_gpu.cards import A100, CARDS, Card
from tracer.null_gpu.cudnn import FOLDER_VARIABLE
from tracer.units import GIB, MIB

COMPUTE_CAPABILITIES = {
    "RTX 3060": (8, 6), "RTX 3090": (8, 6), "GeForce RTX 3090": (8, 6), "RTX 4060": (8, 9), "RTX 4070": (8, 9),
    "A10G": (8, 6), "A100": (8, 0), "H100": (9, 0), "B200": (10, 0),
}  # fmt: skip
OURS = "ours"
GROUPS: dict[str, Callable[[PublishedRun], bool]] = {
    "xMem, transformers": lambda run: run.collection == "xmem" and run.kind != "cnn",
    "xMem, convolution networks": lambda run: run.collection == "xmem" and run.kind == "cnn",
    "Liger, modules": lambda run: run.collection == "liger_module",
    "LitGPT, low-rank adapters (peak allocated)": lambda run: run.collection in ("litgpt_lora", "litgpt_config"),
    "GPUMemNet, MLPs": lambda run: run.collection == "gpumemnet_mlp",
    "GPUMemNet, convolution networks": lambda run: run.collection == "gpumemnet_test",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What came of a run.

    Attributes:
        run: What it is about.
        allocated_bytes: Peak, without a limit.
        reserved_bytes: Peak, on the card where it fits, else without a limit.
        fits: Whether it runs on the card.
        seconds: Of the process's time, building included.
        host_bytes: Its largest resident set.
        parameter_bytes: Of the model.
        problem: Why there is no prediction; empty where there is one.
    """

    run: PublishedRun
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    fits: bool = True
    seconds: float = 0.0
    host_bytes: int = 0
    parameter_bytes: int = 0
    problem: str = ""

    @property
    def figure_bytes(self) -> int:
        """What the measured figure is of."""
        return self.allocated_bytes if self.run.figure == "allocated" else self.reserved_bytes


# ---- predicting ------------------------------------------------------------------------------------------------------


def run_on_null_gpu(run: PublishedRun, asks_cudnn: bool) -> Prediction:
    """Run it there."""
    variables = {} if asks_cudnn else {"NULL_GPU_CUDNN_WORKSPACE": "0"}
    card = replace(card_of_run(run) or A100, capability=compute_capability(run.card))
    return Prediction(run=run, **on_null_gpu(run, card, variables))


def card_of_run(run: PublishedRun) -> Card | None:
    """The card that it ran on, as far as it is in our table."""
    name = run.card.replace(" ", "-")
    known = [card for card in CARDS if name.startswith((card.label, f"NVIDIA-{card.label}"))]
    return max(known, key=lambda card: len(card.label), default=None)


def compute_capability(card: str) -> tuple[int, int]:
    """Of a card by its published name; that of an A100 where it is not known."""
    return next((found for name, found in COMPUTE_CAPABILITIES.items() if name in card), A100.capability)


def predict_all(runs: Sequence[PublishedRun], num_processes: int, asks_cudnn: bool) -> Iterator[Prediction]:
    """Predict each in a process of its own, so many at a time."""
    context = multiprocessing.get_context("fork")
    waiting = list(runs)
    at_work: dict[Connection, tuple[Any, PublishedRun]] = {}
    while waiting or at_work:
        while waiting and len(at_work) < num_processes:
            run = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_in_child, args=(run, asks_cudnn, sender))
            process.start()
            sender.close()
            at_work[receiver] = process, run
        for ready in wait(list(at_work)):
            assert isinstance(ready, Connection)
            process, run = at_work.pop(ready)
            try:
                yield ready.recv()
            except EOFError:
                process.join()
                yield Prediction(run, problem=f"its process ended with {process.exitcode}")
            process.join()


def _in_child(run: PublishedRun, asks_cudnn: bool, sender: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what libraries say of deprecated arguments
    try:
        sender.send(run_on_null_gpu(run, asks_cudnn))
    except Unknown as missing:
        sender.send(Prediction(run, problem=str(missing)))
    except Exception:
        sender.send(Prediction(run, problem=traceback.format_exc().strip().splitlines()[-1][:200]))
    sender.close()


# ---- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors in percent, signed, of one estimator."""

    values: tuple[float, ...]

    def cells(self) -> list[str]:
        """For a table: number, median, mean, largest, within 1 %, within 2 %."""
        sizes = [abs(value) for value in self.values]
        if not sizes:
            return ["0", "-", "-", "-", "-", "-"]
        within = [f"{sum(size <= limit for size in sizes)}" for limit in (1, 2)]
        return [f"{len(sizes)}", f"{median(sizes):.2f}", f"{mean(sizes):.2f}", f"{max(sizes):.1f}", *within]


def error_of(estimate: int, run: PublishedRun) -> float:
    """In percent of what was measured."""
    assert run.measured_bytes
    return 100 * (estimate / run.measured_bytes - 1)


def with_constants(predictions: Sequence[Prediction]) -> tuple[list[Prediction], dict[str, int]]:
    """Whole-device figures have the context and the libraries in them: one constant for each collection."""
    left: dict[str, list[int]] = {}
    for each in predictions:
        if each.run.figure == "whole device" and each.run.collection != "gpumemnet_timm" and each.run.measured_bytes:
            left.setdefault(each.run.collection, []).append(each.run.measured_bytes - each.reserved_bytes)
    constants = {name: round(median(values)) for name, values in left.items()}
    moved = []
    for each in predictions:
        extra = constants.get(each.run.collection, 0)
        moved.append(replace(each, reserved_bytes=each.reserved_bytes + extra))
    return moved, constants


def errors_by_estimator(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Ours, and that of everybody who published an estimate for some of the runs; only runs that ran."""
    ran = [each for each in predictions if each.run.ran and each.run.measured_bytes]
    found = {OURS: Errors(tuple(error_of(each.figure_bytes, each.run) for each in ran))}
    for name in sorted({name for each in ran for name in each.run.estimates}):
        theirs = [each for each in ran if name in each.run.estimates]
        found[f"{OURS}, on the rows of {name}"] = Errors(
            tuple(error_of(each.figure_bytes, each.run) for each in theirs)
        )
        found[name] = Errors(tuple(error_of(each.run.estimates[name], each.run) for each in theirs))
    return found


def error_table(predictions: Sequence[Prediction]) -> list[list[str]]:
    """A row for each group and estimator."""
    table = [["runs", "estimator", "n", "median %", "mean %", "max %", "within 1 %", "within 2 %"]]
    for group, belongs in GROUPS.items():
        members = [each for each in predictions if belongs(each.run)]
        if not members:
            continue
        found = errors_by_estimator(members)
        allocated = [each for each in members if each.run.ran and each.run.measured_bytes]
        if any(each.run.figure == "driver" for each in members):
            found["ours, peak allocated alone"] = Errors(
                tuple(error_of(each.allocated_bytes, each.run) for each in allocated)
            )
        table += [[group, name, *errors.cells()] for name, errors in found.items()]
    return table


def family_table(predictions: Sequence[Prediction]) -> list[list[str]]:
    """The error of each family, and of all the others together."""
    table = [["runs", "family", "n", "median % of it", "signed mean %", "median % of the others"]]
    for group, belongs in GROUPS.items():
        members = [each for each in predictions if belongs(each.run) and each.run.ran and each.run.measured_bytes]
        for family in sorted({each.run.family for each in members}):
            of_family = [error_of(each.figure_bytes, each.run) for each in members if each.run.family == family]
            others = [abs(error_of(each.figure_bytes, each.run)) for each in members if each.run.family != family]
            table.append([
                group, family, f"{len(of_family)}", f"{median(map(abs, of_family)):.2f}", f"{mean(of_family):+.2f}",
                f"{median(others):.2f}" if others else "-",
            ])  # fmt: skip
    return table


def difference_table(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Of collections whose constant is not known: what more a larger batch took, predicted and measured."""
    table = [["model", "batches", "measured MiB", "ours MiB", "error %"]]
    by_model: dict[str, list[Prediction]] = {}
    for each in predictions:
        if each.run.collection == "gpumemnet_timm":
            by_model.setdefault(each.run.model, []).append(each)
    for model, members in by_model.items():
        members.sort(key=lambda each: int(each.run.batch_size))
        for small, large in itertools.pairwise(members):
            measured = (large.run.measured_bytes or 0) - (small.run.measured_bytes or 0)
            ours = large.reserved_bytes - small.reserved_bytes
            table.append([
                model, f"{small.run.batch_size} to {large.run.batch_size}", f"{measured / MIB:.0f}",
                f"{ours / MIB:.0f}", f"{100 * (ours / measured - 1):+.1f}",
            ])  # fmt: skip
    return table


def outcome_table(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Whether it fits: runs of grade A and B on a card whose memory is known."""
    judged = [each for each in predictions if each.run.capacity_bytes and each.run.grade in "AB"]
    table = [["runs", "estimator", "n", "right", "said to fit and did not", "said not to fit and did"]]
    groups: dict[str, Callable[[PublishedRun], bool]] = {"all": lambda _: True}
    groups |= {name: _in_collection(name) for name in sorted({each.run.collection for each in judged})}
    for group, belongs in groups.items():
        members = [each for each in judged if belongs(each.run)]
        ours = [(each.fits, each.run.ran) for each in members]
        table.append([group, OURS, *_outcome_cells(ours)])
        for name in sorted({name for each in members for name in each.run.estimates}):
            theirs = [
                (each.run.estimates[name] <= (each.run.capacity_bytes or 0), each.run.ran)
                for each in members
                if name in each.run.estimates
            ]
            table.append([group, name, *_outcome_cells(theirs)])
    return table


def _in_collection(name: str) -> Callable[[PublishedRun], bool]:
    return lambda run: run.collection == name


def _outcome_cells(pairs: Sequence[tuple[bool, bool]]) -> list[str]:
    right = sum(said == ran for said, ran in pairs)
    missed = sum(said and not ran for said, ran in pairs)
    return [f"{len(pairs)}", f"{right}", f"{missed}", f"{len(pairs) - right - missed}"]


def cost_table(predictions: Sequence[Prediction]) -> list[list[str]]:
    """What a prediction costs."""
    table = [["runs", "n", "median s", "worst s", "median host MiB", "worst host MiB", "over 2 x parameters + 1.5 GB"]]
    groups = GROUPS | {"all": lambda _: True}
    for group, belongs in groups.items():
        members = [each for each in predictions if belongs(each.run)]
        if not members:
            continue
        seconds = [each.seconds for each in members]
        hosts = [each.host_bytes / MIB for each in members]
        over = sum(each.host_bytes > 2 * each.parameter_bytes + 1.5 * GIB for each in members)
        table.append([
            group, f"{len(members)}", f"{median(seconds):.1f}", f"{max(seconds):.1f}", f"{median(hosts):.0f}",
            f"{max(hosts):.0f}", f"{over}",
        ])  # fmt: skip
    return table


def line_of(each: Prediction) -> str:
    """A run in a line."""
    run = each.run
    if each.problem:
        return f"{run.row:20} {run.model[:26]:26} not predicted: {each.problem}"
    measured = f"{run.measured_bytes / MIB:9.1f}" if run.measured_bytes else f"{'-':>9}"
    error = f"{error_of(each.figure_bytes, run):+7.2f} %" if run.measured_bytes else " " * 9
    theirs = ", ".join(f"{name} {error_of(size, run):+.1f} %" for name, size in run.estimates.items())
    return (
        f"{run.row:20} {run.model[:26]:26} {run.optimizer:8} {run.batch_size:>8} measured {measured} MiB "
        f"{'ran' if run.ran else 'out of memory':13} ours {each.figure_bytes / MIB:9.1f} {error} "
        f"allocated {each.allocated_bytes / MIB:9.1f} {'fits' if each.fits else 'does not fit':12} "
        f"{each.seconds:5.1f} s {each.host_bytes / MIB:6.0f} MiB  {theirs}"
    )


# ---- the command -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[""], metavar="PREFIX", help="only rows whose name begins so")
    parser.add_argument("--each", action="store_true", help="also a line for every run")
    parser.add_argument(
        "--cudnn", nargs="?", const="", metavar="FOLDER", help="ask the cuDNN here, or in a folder, for workspaces"
    )
    parser.add_argument("--deterministic", action="store_true", help="torch.backends.cudnn.deterministic")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="only models of these kinds, such as cnn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also every prediction, for scripts")
    options = parser.parse_args()
    runs = [run for run in published_runs() if run.row.startswith(tuple(options.rows))]
    runs = [run for run in runs if not options.kinds or run.kind in options.kinds]
    if not runs:
        print(f"There are no published runs in {TRUTH.parent.name}/{TRUTH.name}, so there is nothing to compare with.")
        return
    _import_libraries()
    if options.cudnn:
        os.environ[FOLDER_VARIABLE] = options.cudnn
    if options.deterministic:
        import torch

        torch.backends.cudnn.deterministic = True
    _print_tables(_predicted(runs, options))


def _print_tables(found: Sequence[Prediction]) -> None:
    moved, constants = with_constants(found)
    for table in (error_table, family_table, outcome_table, difference_table, cost_table):
        rows = table(found if table in (outcome_table, cost_table, difference_table) else moved)
        if len(rows) > 1:
            print(f"\n{as_markdown(rows)}")
    for name, constant in constants.items():
        print(f"\nThe constant of {name}, context and libraries of a whole device: {constant / MIB:.0f} MiB.")


def _predicted(runs: Sequence[PublishedRun], options: argparse.Namespace) -> list[Prediction]:
    """All that could be, in the order of the runs; the others are named."""
    found = []
    for each in predict_all(runs, options.processes, options.cudnn is not None):
        found.append(each)
        if options.each or each.problem:
            print(line_of(each), flush=True)
    found.sort(key=lambda each: runs.index(each.run))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found]), "utf-8")
    return [each for each in found if not each.problem]


def _import_libraries() -> None:
    """Once, before the processes part: what it takes is not part of a prediction."""
    import torch
    import torchvision
    import transformers
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.gpt_neo import modeling_gpt_neo
    from transformers.models.llama import modeling_llama
    from transformers.models.opt import modeling_opt
    from transformers.models.t5 import modeling_t5

    modules: list[Any] = [
        modeling_gpt2,
        modeling_gpt_neo,
        modeling_llama,
        modeling_opt,
        modeling_t5,
    ]
    versions = ", ".join(f"{each.__name__} {each.__version__}" for each in (torch, torchvision, transformers))
    print(f"{versions}; {sum(len(vars(each)) > 0 for each in modules)} modules loaded before the predictions")


if __name__ == "__main__":
    main()
