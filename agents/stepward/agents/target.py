"""Finds the agent that MODULE[:ATTR] names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Final

from stepward.agents.agent import Agent
from stepward.agents.errors import TargetError

ATTRIBUTE_DEFAULT: Final = "agent"

# What an import raises because of what is written, and will raise again. Anything else, such as a connection that is
# refused, may pass, and the worker is started again.
WRONG_CODE: Final = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
)


def load(target: str) -> Agent:
    """Import the module and give the agent in it; without ATTR, the one named `agent`.

    Raises:
        TargetError: There is no such module, it cannot be imported, it has no such attribute, or that is no agent.
    """
    module_name, colon, attribute = target.partition(":")
    if colon and not attribute:
        raise TargetError(f"{target!r} has nothing after the colon; write MODULE:ATTR or MODULE")
    module = _import(module_name)
    found = getattr(module, attribute or ATTRIBUTE_DEFAULT, None)
    if isinstance(found, Agent):
        return found
    agents = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    others = f"; it has {', '.join(f'{module_name}:{name}' for name in agents)}" if agents else ""
    what = "no attribute" if found is None else f"a {type(found).__name__}, not an Agent, as"
    raise TargetError(f"module {module_name!r} has {what} {attribute or ATTRIBUTE_DEFAULT!r}{others}")


def _import(module_name: str) -> object:
    if module_name.endswith(".py") or os.sep in module_name:
        raise TargetError(_no_path(Path(module_name), module_name))
    if module_name.startswith(".") or not module_name:
        raise TargetError(f"{module_name!r} is no name of a module; write it in full, such as package.module")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from None
        places = ", ".join(place or str(Path.cwd()) for place in sys.path)
        raise TargetError(f"there is no module {error.name!r}; looked in {places}") from None
    except WRONG_CODE as error:
        raise _broken(module_name, error) from None


def _no_path(path: Path, given: str) -> str:
    what = "a file" if path.is_file() else "a folder" if path.is_dir() else "a path, and nothing is there"
    parts = path.with_suffix("").parts
    if path.is_absolute() or ".." in parts:
        return f"{given!r} is {what}; name the module instead, in its folder: {path.stem}"
    return f"{given!r} is {what}; name the module instead: {'.'.join(parts)}"


def _broken(module_name: str, error: Exception) -> TargetError:
    """The user's own frames, and not those of the import around them."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen importlib")
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return TargetError(f"module {module_name!r} cannot be imported:\n{''.join(lines).rstrip()}")
