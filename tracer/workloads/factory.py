"""Finds a factory by import path, and calls it with arguments from the command line.

The models that come with this program are in the folder models/ of a checkout, or its copy in the installed package.
They are loaded by path and under a name of their own, so that the name `models` stays free for the user's project.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from tracer.errors import UserModelError, WrongValueError, error_words

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_models", _PACKAGE.parent / "models")
_NAME = "_torch_timeline_models"


def shipped_models() -> Path:
    """The folder with their files."""
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def is_shipped(module_name: str) -> bool:
    """Return True for a shipped model by its name in a checkout, `models.gpt`, and no other package's.

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


__tracebackhide__ = True  # what raises here is to be looked for in the factory

FACTORY_HINT = "A factory returns a module, (module, optimizer) or a workload; a loop of your own is a script, for run."
_NAME_HINT = "Write package.module:factory, or path/to/file.py:factory."

# ---- finding the factory ---------------------------------------------------------------------------------------------


def load_factory(name_of_factory: str) -> Any:
    """Import what `package.module:name` or `path/to/file.py:name` names; the name may have dots."""
    module_name, _, name = name_of_factory.rpartition(":")
    if not module_name or not name:
        raise WrongValueError(f"{name_of_factory} does not name a factory.", hint=_NAME_HINT)
    is_file = module_name.endswith(".py") or "/" in module_name
    # Modules in these folders are found first, as Python does for what it runs.
    for folder in map(str, (Path.cwd(), *([Path(module_name).absolute().parent] if is_file else []))):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    module = _load_file(Path(module_name)) if is_file else _load_module(module_name)
    attribute: Any = module
    for part in name.split("."):
        if not hasattr(attribute, part):
            near = ", ".join(_callables(module))
            hint = f"It has {near}." if 0 < len(near) < 200 else _NAME_HINT
            raise UserModelError(f"{module_name} has no {name}.", hint=hint)
        attribute = getattr(attribute, part)
    return attribute


def _callables(module: ModuleType) -> list[str]:
    """Return the callables that a module defines, or else those that it imports."""
    public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
    own = [key for key in public if getattr(vars(module)[key], "__module__", None) == module.__name__]
    return own or public


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            if is_shipped(name):
                return shipped_model(name.removeprefix("models."))
            has_package = importlib.util.find_spec(name.split(".")[0]) is not None
            hint = (
                "Give the file instead: path/to/file.py:factory."
                if has_package
                else "Install it, or give a file's path."
            )
            raise UserModelError(f"There is no module {error.name}.", hint=hint) from None
        raise _missing_package(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserModelError(f"There is no file {path}.", hint=_NAME_HINT)
    name = f"profiled_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UserModelError(f"{path} is not a Python file.", hint=_NAME_HINT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise _missing_package(str(path), error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(str(path), error) from error
    return module


def _missing_package(name: str, error: ModuleNotFoundError) -> UserModelError:
    if (error.name or "").startswith("tracer."):
        return UserModelError(f"{name} imports {error.name}, {_HIDDEN}", hint=_RENAME)
    return UserModelError(f"{name} imports {error.name}, which is not installed.", hint="Install it and run again.")


_HIDDEN = "and the name tracer is taken by this program."
_RENAME = "Rename that package, or profile the loop that uses it: see profile_training in the README."


def _import_failed(name: str, error: BaseException) -> UserModelError:
    if isinstance(error, ImportError) and error.name == "tracer":
        return UserModelError(f"{name} imports what this program's tracer has not, {_HIDDEN}", hint=_RENAME)
    if isinstance(error, SystemExit):
        return UserModelError(
            f"Importing {name} ended the program.", hint='Put what it runs below `if __name__ == "__main__":`.'
        )
    return UserModelError(
        f"Importing {name} raised {error_words(error).rstrip('.')}.", hint="Make sure that Python can import it."
    )


# ---- calling it ------------------------------------------------------------------------------------------------------


def parse_arguments(option: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse arguments such as `width=256`; a value is a Python literal such as `(3, 4)` or `None`, or else a string."""
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key.strip().isidentifier():
            raise WrongValueError(f"{option} {argument} is not of the form key=value.", hint=f"{option} width=256")
        try:
            values[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = {"true": True, "false": False}.get(text, text)
    return values


def call_factory(name_of_factory: str, factory: Any, arguments: dict[str, Any], offered: Mapping[str, Any]) -> Any:
    """Return a factory's result; a module is returned as it is."""
    if isinstance(factory, nn.Module) or not callable(factory):
        if arguments or not isinstance(factory, nn.Module):
            is_what = "is a module already and takes no arguments" if arguments else "cannot be called"
            raise UserModelError(f"{name_of_factory} {is_what}.", hint=FACTORY_HINT)
        return factory
    arguments = _fitting(name_of_factory, factory, arguments, offered)
    try:
        return factory(**arguments)
    except (Exception, SystemExit) as error:
        hint = "Check the --model-arg options, or the factory itself."
        if re.search("NVIDIA driver|no accelerator device", str(error)):
            hint = "No GPU is here: leave out .cuda(), or take the null GPU: --on h100."
        raise UserModelError(f"{name_of_factory} raised {error_words(error).rstrip('.')}.", hint=hint) from error


def _fitting(
    name_of_factory: str, factory: Any, arguments: dict[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # made in C
        return arguments
    takes = {key for key, value in signature.parameters.items() if value.kind not in _STARRED}
    arguments = {key: value for key, value in offered.items() if key in takes} | arguments
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserModelError(
            f"{name_of_factory}{defined_at(factory)} does not fit its arguments: {error}.",
            hint=f"Give each argument as --model-arg key=value. It takes {', '.join(signature.parameters) or 'none'}.",
        ) from None
    return arguments


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


def defined_at(thing: Any) -> str:
    """` (file.py:12)` where a function, method or class is defined in Python, else nothing."""
    try:
        file, line = inspect.getsourcefile(inspect.unwrap(thing)), inspect.getsourcelines(thing)[1]
    except (TypeError, OSError):
        return ""
    if not file:
        return ""
    path, folder = Path(file).absolute(), Path.cwd()
    return f" ({path.relative_to(folder) if path.is_relative_to(folder) else path}:{line})"
