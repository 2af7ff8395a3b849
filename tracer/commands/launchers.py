"""Launchers in the place of a script, such as torchrun: the script that they start is what a command is about.

Variables that a script sets before it imports torch are set first: this program imports torch before the script runs.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from tracer.commands.on_card import OnOptions
from tracer.commands.script import Script
from tracer.errors import UsageError
from tracer.exporters.screen.next_commands import program_name
from tracer.null_gpu.cards import devices_of
from tracer.units import some

# Variables that torch, and what it loads, read once.
_READ_BY_TORCH: Final = (
    "PYTORCH_", "TORCH", "TRITON_", "CUDA_", "CUBLAS", "CUDNN_", "NCCL_", "NVIDIA_", "GLOO_", "OMP_", "GOMP_", "KMP_",
    "MKL_", "OPENBLAS_", "NUMEXPR_", "VECLIB_", "ATEN_", "DNNL_", "ONEDNN_", "KINETO_", "HIP_", "ROCR_", "HSA_",
    "MIOPEN_",
)  # fmt: skip


def set_environment_of(script: str, *, is_module: bool) -> None:
    """Set what a script's first statements set: `os.environ["OMP_NUM_THREADS"] = "1"`, and `setdefault` with constants.

    Those of its own file, with -m of the package's, up to the one that imports torch.
    """
    if "torch" in sys.modules:
        return
    spec = PathFinder.find_spec(script.partition(".")[0], ["", *sys.path]) if is_module else None
    try:
        statements = ast.parse(Path(spec.origin if spec and spec.origin else script).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # Python says it when the script runs
        return
    for statement in statements:
        match statement:
            case ast.Import(names=names) if any(alias.name.partition(".")[0] == "torch" for alias in names):
                return
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] == "torch":
                return
            case ast.Assign(
                targets=[ast.Subscript(value=environ, slice=ast.Constant(str(name)))], value=ast.Constant(str(value))
            ) if _is_environ(environ):
                os.environ.update({name: value} if name.startswith(_READ_BY_TORCH) else {})
            case ast.Expr(
                ast.Call(ast.Attribute(environ, "setdefault"), [ast.Constant(str(name)), ast.Constant(str(value))])
            ) if _is_environ(environ) and name.startswith(_READ_BY_TORCH):
                os.environ.setdefault(name, value)


def _is_environ(expression: ast.expr) -> bool:
    return ast.unparse(expression).rpartition(".")[2] == "environ"


_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_PROGRAMS: Final = {
    "torchrun": "torchrun", "deepspeed": "deepspeed", "mpirun": "mpirun", "mpiexec": "mpiexec",
    "horovodrun": "horovodrun",
}  # fmt: skip
_NUM_PROCESSES: Final = ("nproc-per-node", "num-gpus", "num-processes", "np", "n")
_NUM_NODES: Final = ("nnodes", "num-nodes")
_OF_ACCELERATE: Final = ("mixed-precision", "gradient-accumulation-steps", "dynamo-backend")
_OF_MPI: Final = {
    "OMPI_COMM_WORLD_RANK": "RANK", "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE", "PMI_RANK": "RANK", "PMI_SIZE": "WORLD_SIZE",
}  # fmt: skip
# These tell each process its number by an option, too.
_LOCAL_RANK: Final = {"deepspeed": "--local_rank", "torch.distributed.launch": "--local-rank"}


@dataclass(frozen=True, slots=True)
class _Launch:
    launcher: str
    options: list[str]
    script: Script

    @property
    def python(self) -> str:
        """Return `python ` for a launcher that starts programs of any kind, else the empty text."""
        return "" if self.launcher in _MODULES.values() else "python "

    @property
    def num_processes(self) -> int | None:
        """Number of processes that it starts; None for as many as there are GPUs."""
        given = dict(_options(self.options))
        found = next((given[name] for name in _NUM_PROCESSES if name in given), None)
        if found is None:
            return 1 if self.launcher.startswith("torch") else None
        nodes = next((given[name] for name in _NUM_NODES if name in given), "1").partition(":")[0]
        return int(found) * int(nodes) if found.isdecimal() and nodes.isdecimal() else None


def script_named(on: OnOptions, script: str, arguments: Sequence[str] | None, *, is_module: bool) -> Script:
    """The script itself, or the one that a launcher in its place starts, whose ranks are those of `--on`.

    Variables that the script sets before it imports torch, and those of the launcher, are set.
    """
    launch = _launch(script, list(arguments or []), is_module=is_module)
    if launch is None:
        set_environment_of(script, is_module=is_module)
        return Script(script, list(arguments or []), is_module)
    launched = launch.script
    if on.on is None:
        raise UsageError(
            f"{launch.launcher} starts the script in processes of its own, which this command does not see.",
            hint=f"Let it start this one: {launch.launcher} ... {launch.python}-m tracer run {launched.path}",
        )
    devices, number = devices_of(on.on), launch.num_processes
    if number is not None and number != devices.count:
        card = re.sub(r"^\d+x", "", on.on)
        raise UsageError(
            f"{launch.launcher} starts {number} {'process' if number == 1 else 'processes'}, and --on {on.on} names "
            f"{some(devices.count, 'GPU')}.",
            hint=f"Write --on {card if number == 1 else f'{number}x{card}'}, or leave out {launch.launcher}.",
        )
    if devices.count == 1 and "RANK" not in os.environ and launch.launcher != "accelerate launch":
        os.environ.update(_alone())
    if launch.launcher in ("mpirun", "mpiexec") and "RANK" in os.environ:
        os.environ.update({name: os.environ[of] for name, of in _OF_MPI.items() if of in os.environ})
    name, arguments = _LOCAL_RANK.get(launch.launcher), launched.arguments
    if name is not None and not {"--no_local_rank", "--use-env", "--use_env"} & set(launch.options):
        arguments = [f"{name}={os.environ.get('LOCAL_RANK', '0')}", *arguments]
    set_environment_of(launched.path, is_module=launched.is_module)
    if launch.launcher == "accelerate launch":
        _set_environment_of_accelerate(launch.options)
    return launched._replace(arguments=arguments)


def _launch(script: str, arguments: list[str], *, is_module: bool) -> _Launch | None:
    launcher = _MODULES.get(script) if is_module else _PROGRAMS.get(Path(script).name)
    if not is_module and Path(script).name == "accelerate" and arguments[:1] == ["launch"]:
        launcher, arguments = "accelerate launch", arguments[1:]
    if launcher is None:
        return None
    for row, word in enumerate(arguments):
        if word.endswith(".py"):
            return _Launch(launcher, arguments[:row], Script(word, arguments[row + 1 :], is_module=False))
        if word in ("-m", "--module") and len(arguments) > row + 1 and arguments[row + 1][:1] != "-":
            rest = Script(arguments[row + 1], arguments[row + 2 :], is_module=True)
            return _Launch(launcher, arguments[:row], rest)
    raise UsageError(
        f"{launcher} is a launcher, and no script of Python's is named behind it.",
        hint=f"Leave it out: {program_name()} run --on 8xh100 train.py runs the ranks by itself.",
    )


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("-"):
            name, has_value, value = word.lstrip("-").partition("=")
            yield name.replace("_", "-"), value if has_value else following


def _alone() -> dict[str, str]:
    """Variables of the only process of a job, as launchers set them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip


def _set_environment_of_accelerate(options: Sequence[str]) -> None:
    for name, value in _options(options):
        if name in ("config-file", "use-fsdp", "use-deepspeed", "use-megatron-lm", "use-parallelism-config"):
            raise UsageError(
                f"--{name} of accelerate launch is not read here.",
                hint="Name the script itself behind --on, and give its Accelerator these settings in Python.",
            )
        if name in _OF_ACCELERATE:
            os.environ[f"ACCELERATE_{name.replace('-', '_').upper()}"] = value
