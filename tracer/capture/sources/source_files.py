"""Owner of a Python frame's file: the user, or torch, Python and other packages.

The profiler shortens file names by the entries of `sys.path`; a name that is to be shown, opened or compared has to be
made whole again in the process that made the recording.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.sources.notebook_cells import cell_name, is_cell
from tracer.capture.sources.remembered import remembered
from tracer.working_folder import working_folder


def _folder_of_torch() -> Path:
    spec = find_spec("torch")
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else Path("torch").resolve()


_TORCH = _folder_of_torch()
_OURS = Path(__file__).resolve().parents[2]
_SHIPPED_MODELS = _OURS / "_models"  # in an installed package; as good as the user's own
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
    paths = [os.path.abspath(file) for file in files if isinstance(file, str)]  # noqa: PTH100 - as the profiler has them
    return {path: place for place, path in enumerate(dict.fromkeys(paths))}


def is_user_code(file_name: str) -> bool:
    """Whether a recorded file name is none of torch's, Python's, an installed package's, this program's or generated.

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
    return not any(resolved.is_relative_to(folder) for folder in (_TORCH, _OURS, *_library_folders()))


@remembered
def is_package_code(file_name: str) -> bool:
    """Whether a recorded file name is an installed package's other than torch's: named where no user code ran."""
    path = _found(file_name)
    if path is None or not _PACKAGE_FOLDERS.intersection(path.parts) or is_generated(file_name):
        return False
    return not path.resolve().is_relative_to(_TORCH)


@remembered
def is_own_code(file_name: str) -> bool:
    """Whether a recorded file name is this program's, or a module's that sets `__tracebackhide__`."""
    path = _found(file_name)
    if path is None or is_user_code(file_name):
        return False
    return path.resolve().is_relative_to(_OURS) or str(path) in _hidden_files()


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
