"""Owner of a Python frame's file: the user, or torch, Python and other packages; what a user's file is called.

The profiler shortens file names by the entries of `sys.path`; a name that is to be shown, opened or compared has to be
made whole again in the process that made the recording. Cells of a notebook are compiled as files that nobody has, such
as `/tmp/ipykernel_123/456.py`: IPython says which input it compiled under which name. Without it nothing is a cell.
"""

from __future__ import annotations

import inspect
import os
import re
import site
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.sources.source_line import SourceLine
from tracer.working_folder import working_folder

if TYPE_CHECKING:
    from torch import nn


_Given = ParamSpec("_Given")
_Known = TypeVar("_Known")
_forget: list[Callable[[], None]] = []


def remembered(function: Callable[_Given, _Known]) -> Callable[_Given, _Known]:
    """Decorate a function so that it is called once a session for the same arguments."""
    known = cache(function)
    _forget.append(known.cache_clear)
    return known  # type: ignore[return-value]


def forget_files() -> None:
    """Look at files, `sys.path` and imported modules anew; every session and watch begins with it."""
    for forget in _forget:
        forget()


_LOOKS_LIKE_ONE = re.compile(r"^<ipython-input-|ipykernel_\d+[/\\]\w+\.py$")
_NUMBER = re.compile(r"\d+")
_CELL = re.compile(r"cell \d+")
_files: dict[str, str] = {}


def cell_name(file: str) -> str | None:
    """`cell 3` for the file of the third input; None for any other file, and where IPython does not know the number.

    A cell that is run again is another input. One that is run again unchanged has the file of the first time, and the
    number of the last.
    """
    if not _LOOKS_LIKE_ONE.search(file):
        return None
    shell = running_shell()
    if shell is None or not hasattr(shell.compile, "format_code_name"):
        return None
    named = shell.compile.format_code_name(file)  # ("Cell", "In[3]"), as its tracebacks say
    number = _NUMBER.search(named[1]) if named is not None else None
    if number is None or not int(number[0]):
        return None
    name = f"cell {number[0]}"
    _files[name] = file
    return name


def is_cell(file: str) -> bool:
    """True if a name was made by `cell_name`."""
    return _CELL.fullmatch(file) is not None


def file_of_cell(name: str) -> str:
    """The file under which IPython compiled a cell; any other name is its own."""
    return _files.get(name, name)


def running_shell() -> Any:
    """The running IPython, which is not imported for it."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _folder_of_torch() -> Path:
    spec = find_spec("torch")
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else Path("torch").resolve()


_TORCH = _folder_of_torch()
_TRACER_FOLDER = Path(__file__).resolve().parents[2]
_SHIPPED_MODELS = _TRACER_FOLDER / "_models"  # in an installed package; as good as the user's own
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


@remembered
def _prefixes() -> tuple[Path, ...]:
    """Folders that the profiler cuts off, longest first.

    Source: `torch.profiler.python_tracer._prefix_regex`.
    """
    raw = [*site.getsitepackages(), *sys.path, site.getuserbase(), site.getusersitepackages(), str(_TORCH.parent)]
    absolute = {os.path.abspath(working_folder() / path) for path in raw if path}  # noqa: PTH100 - links are left alone, as torch does
    return tuple(Path(path) for path in sorted(absolute, reverse=True))


@remembered
def _library_folders() -> tuple[Path, ...]:
    return tuple(Path(path).resolve() for path in _library_paths())


@remembered
def _library_prefixes() -> tuple[str, ...]:
    """The beginnings of paths into these folders, as Python has them and behind links."""
    return tuple({os.path.join(path, "") for path in (*_library_paths(), *map(str, _library_folders()))})  # noqa: PTH118


def _library_paths() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return [
        *(sysconfig.get_path(name) for name in names),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
    ]


def whole_path(file_name: str) -> str:
    """The file's absolute path where it can be found, `cell 3` for a notebook's, else the name as recorded."""
    return cell_name(file_name) or _whole_path(file_name)


@remembered
def _whole_path(file_name: str) -> str:
    if file_name.startswith("<") or Path(file_name).is_absolute():
        return file_name
    found = [str(prefix / file_name) for prefix in _prefixes() if (prefix / file_name).is_file()]
    # A script that is called by a path, such as `../train.py`, has that in its frames.
    called = os.path.abspath(working_folder() / file_name)  # noqa: PTH100 - links are left alone, as above
    found += [called] if called not in found and Path(called).is_file() else []
    if len(found) > 1:  # the same name in several folders: the file that has run
        places = _places_of_loaded_files(len(sys.modules))
        found.sort(key=lambda path: places.get(path, len(places)))
    return found[0] if found else file_name


@remembered
def _places_of_loaded_files(num_modules: int) -> dict[str, int]:
    """Positions of the files of this process's code: the script first, then modules, of which there are so many."""
    modules = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    files = [sys.argv[0] if sys.argv else None, *(names.get("__file__") for names in modules)]
    folder = (
        working_folder()
    )  # as the profiler has them, from the folder where the program began if it has deleted its own
    paths = [os.path.normpath(folder / file) for file in files if isinstance(file, str)]
    return {path: place for place, path in enumerate(dict.fromkeys(paths))}


def is_user_code(file_name: str) -> bool:
    """True if a recorded file is the user's: not torch's, Python's, a package's, this program's, nor generated.

    Modules that set `__tracebackhide__` only pass calls on to the user's model and count as this program's.
    """
    return is_cell(file_name) or cell_name(file_name) is not None or _is_user_file(file_name)


@remembered
def _is_user_file(file_name: str) -> bool:
    path = _found(file_name)
    if path is None:
        return False
    is_packages = not _PACKAGE_FOLDERS.isdisjoint(path.parts)
    is_librarys = is_packages or str(path).startswith(_library_prefixes())
    # A process has thousands of these, and links are followed with a call of the system for each folder.
    if is_librarys and _SHIPPED_MODELS.name not in path.parts:
        return False
    resolved = path.resolve()
    if resolved.is_relative_to(_SHIPPED_MODELS):
        return True
    if is_packages or is_generated(file_name) or str(path) in _hidden_files():
        return False
    if "." in resolved.stem and resolved.parent == Path(tempfile.gettempdir()).resolve():
        return False  # a module that a library has written, as PyTorch Geometric does by its dotted name
    return not any(resolved.is_relative_to(folder) for folder in (_TORCH, _TRACER_FOLDER, *_library_folders()))


@remembered
def is_package_code(file_name: str) -> bool:
    """True if a recorded file is an installed package's other than torch's: named where no user code ran."""
    path = _found(file_name)
    if path is None or not _PACKAGE_FOLDERS.intersection(path.parts) or is_generated(file_name):
        return False
    return not path.resolve().is_relative_to(_TORCH)


@remembered
def is_own_code(file_name: str) -> bool:
    """True if a recorded file name is this program's, or a module's that sets `__tracebackhide__`."""
    path = _found(file_name)
    if path is None or is_user_code(file_name):
        return False
    return path.resolve().is_relative_to(_TRACER_FOLDER) or str(path) in _hidden_files()


def _found(file_name: str) -> Path | None:
    if file_name.startswith("<") or not file_name:
        return None
    path = Path(whole_path(file_name))
    return path if path.is_absolute() else None


@remembered
def _hidden_files() -> frozenset[str]:
    # None stands for a module that must not be imported, and lazy ones are not to be woken up.
    modules = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    hidden = (names.get("__file__") for names in modules if names.get("__tracebackhide__") is True)
    return frozenset(os.path.abspath(working_folder() / file) for file in hidden if file)  # noqa: PTH100 - as the profiler has them


class ProjectFiles:
    """Names of files for people: from the root of the user's project, or from the folder of installed packages."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._names: dict[str, str | None] = {}

    def __call__(self, file: str) -> str | None:
        """The path from the root, or of a library's file from the folder of packages, with forward slashes, or None."""
        if file not in self._names:
            self._names[file] = self._name(file)
        return self._names[file]

    def _name(self, file: str) -> str | None:
        if is_cell(file):
            return file
        path = Path(file)
        if not path.is_absolute():
            return None
        # As it was imported, or, where that is a link, as it lies.
        for candidate in (path, path.resolve()):
            if candidate.is_relative_to(self.root) and not self._installed(candidate):
                return _text(candidate.relative_to(self.root))
        return _text(_from_package_folder(path)) if is_package_code(file) else None

    def _installed(self, path: Path) -> bool:
        inner = path.relative_to(self.root)
        if _PACKAGE_FOLDERS.intersection(inner.parts):
            return True
        folders = (self.root.joinpath(*inner.parts[:depth]) for depth in range(1, len(inner.parts)))
        return any(_is_virtual_environment(folder) for folder in folders)


@remembered
def path_in_checkout(file: str, folder: str) -> str:
    """Name a file so that it is the same in every checkout and on every machine.

    `/ci/head/model/net.py` of the repository `/ci/head` is `model/net.py`, and a library's file is named from the
    folder of packages. Outside of any repository it is relative to a folder, or its last two parts.
    """
    path = Path(file)
    if is_cell(file) or not path.is_absolute():
        return file
    if _PACKAGE_FOLDERS.intersection(path.parts):
        return _text(_from_package_folder(path))
    root = next((parent for parent in path.parents if (parent / ".git").exists()), Path(folder))
    return _text(path.relative_to(root) if path.is_relative_to(root) else Path(*path.parts[-2:]))


def _from_package_folder(path: Path) -> Path:
    parts = path.parts
    last = max(at for at, part in enumerate(parts) if part in _PACKAGE_FOLDERS)
    return Path(*parts[last + 1 :])


def _text(path: Path) -> str:
    """Names of files are bytes; what is no text would be refused by readers of text."""
    return path.as_posix().encode(errors="replace").decode()


@remembered
def _is_virtual_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def project_root(model: nn.Module | None) -> Path:
    """The folder of the model's code, above its package if it is in one; the current folder for a model of others.

    The outermost module whose class is the user's decides.
    """
    for module in model.modules() if model is not None else ():
        file = class_file(type(module))
        if file is not None and is_user_code(str(file)):
            # The folder above the module's package, which may be one without an `__init__.py`.
            depth = type(module).__module__.count(".") + (file.name == "__init__.py")
            folder = file.parents[min(depth, len(file.parents) - 1)]
            while (folder / "__init__.py").is_file():
                folder = folder.parent
            return folder
    return working_folder()


def class_file(cls: type) -> Path | None:
    """The file that defines a class, or None for one of C or of an interactive session."""
    try:
        return Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        return None


def error_line(error: BaseException) -> SourceLine | None:
    """The line, counted from 1, of the innermost frame of the user's code.

    Frames of code that runs a step for somebody, and is not to blame for what happens in it, are passed over: those
    that have set `__tracebackhide__`, as pytest has it. Where no frame is the user's, it is the innermost one outside
    torch and this program, such as a line of a model library. An exception without a traceback has none, except a
    syntax error, which names it.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return SourceLine(error.filename, error.lineno)
    frames = [
        SourceLine(whole_path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__tracebackhide__")
    ]
    own = [line for line in frames if is_user_code(line.file)]
    others = [line for line in frames if _is_a_library(line.file)]
    return own[-1] if own else others[-1] if others else None


def _is_a_library(file_name: str) -> bool:
    path = Path(file_name)
    return path.is_absolute() and not any(path.resolve().is_relative_to(folder) for folder in (_TORCH, _TRACER_FOLDER))
