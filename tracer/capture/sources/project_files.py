"""Which files are of the user's project, and what they are called from its root."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.capture.sources.notebook_cells import is_cell
from tracer.capture.sources.remembered import remembered
from tracer.capture.sources.source_files import is_package_code, is_user_code
from tracer.working_folder import working_folder

if TYPE_CHECKING:
    from torch import nn

_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


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
            return _import_folder(file, type(module).__module__)
    return working_folder()


def _import_folder(file: Path, module: str) -> Path:
    """The folder above a module's package, which may be one without an `__init__.py`."""
    depth = module.count(".") + (file.name == "__init__.py")
    folder = file.parents[min(depth, len(file.parents) - 1)]
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def class_file(cls: type) -> Path | None:
    """The file that defines a class, or None for one of C or of an interactive session."""
    try:
        return Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        return None
