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
from contextlib import suppress
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
_WITHOUT_TORCH: Final = frozenset({
    "PIL", "absl", "click", "cv2", "dotenv", "fire", "matplotlib", "numpy", "omegaconf", "pandas", "psutil",
    "requests", "rich", "scipy", "seaborn", "setproctitle", "sklearn", "tabulate", "tiktoken", "toml", "tqdm",
    "typer", "yaml",
})  # fmt: skip


def set_environment_of(script: str, *, is_module: bool) -> None:
    """Set what a script's first statements set, up to those that can import torch.

    `os.environ["OMP_NUM_THREADS"] = "1"`, `setdefault` and `update` with constants, in the script and in its own
    modules that it imports before.
    """
    if "torch" in sys.modules:
        return
    reader = _StatementReader(Path() if is_module else Path(script).parent)
    for file in _files_of_module(script) if is_module else [Path(script)]:
        if reader.reads(file):
            break


def _files_of_module(name: str) -> Iterator[Path]:
    """The files that `python -m` runs, in order; none where they are not found."""
    path: list[str] | None = ["", *sys.path]
    for part in name.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return
        path = spec.submodule_search_locations
        if spec.origin is not None:
            yield Path(spec.origin)
    if path:
        yield Path(path[0], "__main__.py")


class _StatementReader:
    """Follows statements in the order in which they run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_read: set[Path] = set()

    def reads(self, file: Path) -> bool:
        """Read a file; True if it has come to what can import torch."""
        if file in self._has_read:
            return False
        self._has_read.add(file)
        try:
            statements = ast.parse(file.read_bytes()).body
        except (OSError, SyntaxError, ValueError):  # Python says it when the script runs
            return True
        return any(map(self._is_end, statements))

    def _is_end(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Import):
            return any(self._imports(alias.name) for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            return bool(statement.level) or self._imports(statement.module or "")
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        os.environ.update(_variables_set_by(statement))
        imports = (node for node in ast.walk(statement) if isinstance(node, ast.Import | ast.ImportFrom))
        return any(map(self._is_end, imports))

    def _imports(self, name: str) -> bool:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or root in _WITHOUT_TORCH:
            return False
        own = (self._folder / f"{root}.py", self._folder / root / "__init__.py")
        file = next((path for path in own if path.is_file()), None)
        return file is None or "." in name or self.reads(file)


def _variables_set_by(statement: ast.stmt) -> dict[str, str]:
    """Variables that torch reads and a statement sets, if it does nothing else, to values that are written in it."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=environ)]):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=environ, attr="setdefault" | "update"))):
            pass
        case _:
            return {}
    name = ast.unparse(environ)  # `environ`, `os.environ`
    found = dict(os.environ)
    if name.rpartition(".")[2] == "environ":
        with suppress(Exception):  # it needs more than is written in it; or the script will raise that itself
            exec(ast.unparse(statement).replace(name, "environ", 1), {"__builtins__": {"str": str}, "environ": found})
    return {name: value for name, value in found.items() if name.startswith(_READ_BY_TORCH) and isinstance(value, str)}


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
