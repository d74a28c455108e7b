"""Finds the agent that MODULE[:ATTR] names."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Final

from stepward.agents.agent import Agent
from stepward.agents.errors import TargetError

ATTRIBUTE_DEFAULT: Final = "agent"


def load(target: str) -> Agent:
    """Import the module and give the agent in it; without ATTR, the one named `agent`.

    Raises:
        TargetError: There is no such module, no such attribute, or it is no agent.
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
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise TargetError(f"{module_name!r} is a file; name the module instead: {dotted}")
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # What a module of the user's lacks is shown as it is, with its traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        places = ", ".join(place or str(Path.cwd()) for place in sys.path)
        raise TargetError(f"there is no module {error.name!r}; looked in {places}") from None
    except ValueError as error:
        raise TargetError(f"{module_name!r} is no name of a module: {error}") from None
