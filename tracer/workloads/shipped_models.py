"""The models that come with this program: the folder models/ of a checkout, or its copy inside the installed package.

They are loaded by path and under a name of their own, so that the name `models` stays free for the user's project.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_models", _PACKAGE.parent / "models")
_NAME = "_torch_timeline_models"


def shipped_models() -> Path:
    """The folder with their files."""
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def is_shipped(module_name: str) -> bool:
    """Whether this is one of them by the name that it has in a checkout, `models.gpt`, and no other package's.

    A folder `models` without an `__init__.py` is no package of its own: projects keep their weights in such folders.
    """
    package, _, name = module_name.partition(".")
    if package != "models" or not (shipped_models() / f"{name}.py").is_file():
        return False
    other = find_spec(package)
    return other is None or other.origin is None


def shipped_model(name: str) -> ModuleType:
    """The module of one, such as `gpt`.

    Raises:
        ModuleNotFoundError: There is no such model.
    """
    if _NAME not in sys.modules:
        spec = ModuleSpec(_NAME, None, is_package=True)
        spec.submodule_search_locations = [str(shipped_models())]
        sys.modules[_NAME] = module_from_spec(spec)
    return importlib.import_module(f"{_NAME}.{name}")
