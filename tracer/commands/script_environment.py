"""Variables that a script sets before it imports torch, which this program imports before the script runs."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

# Variables that torch, and what it loads, read once.
_READ_BY_TORCH: Final = (
    "PYTORCH_", "TORCH", "TRITON_", "CUDA_", "CUBLAS", "CUDNN_", "NCCL_", "NVIDIA_", "GLOO_", "OMP_", "GOMP_", "KMP_",
    "MKL_", "OPENBLAS_", "NUMEXPR_", "VECLIB_", "ATEN_", "DNNL_", "ONEDNN_", "KINETO_", "HIP_", "ROCR_", "HSA_",
    "MIOPEN_",
)  # fmt: skip
# Of them, those that are read when torch is loaded, and not when a device is first used.
_READ_AT_IMPORT: Final = (
    "PYTORCH_",
    "TORCH",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
)
_WITHOUT_TORCH: Final = frozenset({
    "PIL", "absl", "click", "cv2", "dotenv", "fire", "matplotlib", "numpy", "omegaconf", "pandas", "psutil",
    "requests", "rich", "scipy", "seaborn", "setproctitle", "sklearn", "tabulate", "tiktoken", "toml", "tqdm",
    "typer", "yaml",
})  # fmt: skip


def set_environment_of(script: str, *, is_module: bool) -> tuple[str, ...]:
    """Set what a script's first statements set, up to those that can import torch.

    `os.environ["OMP_NUM_THREADS"] = "1"`, `setdefault`, `update`, `pop` and `del` with constants, in the script and in
    its own modules that it imports before.

    Returns:
        Sentences on variables that are set so that only the running script knows the value, which is too late.
    """
    if "torch" in sys.modules:
        return ()
    reader = _StatementReader(Path() if is_module else Path(script).parent)
    for file in _files_of_module(script) if is_module else [Path(script)]:
        if reader.reads(file):
            break
    return tuple(
        f"Note: {place} sets {name} when this command has loaded torch already: set it before the command."
        for name, place in reader.late.items()
    )


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
        self.late: dict[str, str] = {}  # Places of variables whose values are not known, by name

    def reads(self, file: Path) -> bool:
        """Read a file; True if it has come to what can import torch."""
        if file in self._has_read:
            return False
        self._has_read.add(file)
        try:
            statements = ast.parse(file.read_bytes()).body
        except (OSError, SyntaxError, ValueError):  # Python says it when the script runs
            return True
        return any(self._is_end(statement, file) for statement in statements)

    def _is_end(self, statement: ast.stmt, file: Path) -> bool:
        if isinstance(statement, ast.Import):
            return any(self._imports(alias.name) for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            return bool(statement.level) or self._imports(statement.module or "")
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        changes = list(_changes(statement))
        for name, value in changes:
            if name.startswith(_READ_BY_TORCH):
                _set(name, value)
        known = {name for name, _ in changes}
        for name, line in _named(statement):
            if name not in known and name.startswith(_READ_AT_IMPORT):
                self.late.setdefault(name, f"{file.name}:{line}")
        imports = (node for node in ast.walk(statement) if isinstance(node, ast.Import | ast.ImportFrom))
        return any(self._is_end(node, file) for node in imports)

    def _imports(self, name: str) -> bool:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or root in _WITHOUT_TORCH:
            return False
        own = (self._folder / f"{root}.py", self._folder / root / "__init__.py")
        file = next((path for path in own if path.is_file()), None)
        return file is None or "." in name or self.reads(file)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _changes(statement: ast.stmt) -> Iterator[tuple[str, str | None]]:
    """Variables that a statement sets to constants; None for one that it removes."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=environ, slice=ast.Constant(value=str(name)))], value=value):
            if _is_environ(environ) and (text := _text(value)) is not None:
                yield name, text
        case ast.Delete(targets=[ast.Subscript(value=environ, slice=ast.Constant(value=str(name)))]):
            if _is_environ(environ):
                yield name, None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=environ, attr=method), args=args, keywords=keywords)):
            if _is_environ(environ):
                yield from _called(method, args, keywords)


def _called(method: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Iterator[tuple[str, str | None]]:
    match method, args:
        case "setdefault", [ast.Constant(value=str(name)), value]:
            text = os.environ.get(name, _text(value))
            if text is not None:
                yield name, text
        case "pop", [ast.Constant(value=str(name)), *_]:
            yield name, None
        case "update", _:
            pairs: list[tuple[ast.expr | None, ast.expr]] = []
            for arg in args:
                if isinstance(arg, ast.Dict):
                    pairs += zip(arg.keys, arg.values, strict=True)
            pairs += [(ast.Constant(keyword.arg), keyword.value) for keyword in keywords]
            for key, value in pairs:
                text = _text(value)
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and text is not None:
                    yield key.value, text


def _named(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """Variables that a statement assigns anywhere in it, with the line."""
    for node in ast.walk(statement):
        match node:
            case ast.Subscript(value=environ, slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                if _is_environ(environ):
                    yield name, node.lineno


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] == "environ"


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Call(func=ast.Name(id="str"), args=[ast.Constant(value=value)], keywords=[]):
            return str(value)
    return None
