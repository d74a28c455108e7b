"""Where a handler lies, so that another process can import it by name."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stepward.agents.errors import ActionError


class _Here:
    """What this process is."""

    inside = False
    """Whether it is the process of a handler."""


class Place(NamedTuple):
    """A module and the name of a function in it."""

    module: str
    qualname: str


def enter() -> None:
    """This process is that of a handler; whatever it imports must not start an agent."""
    _Here.inside = True


def inside() -> bool:
    """Whether this process is that of a handler."""
    return _Here.inside


def place_of(name: str, function: Callable[..., Any]) -> Place:
    """Where the handler of an action lies.

    Raises:
        ActionError: Another process would not find it there.
    """
    module, qualname = function.__module__, function.__qualname__
    text = f"the handler of {name!r} runs in a process of its own, which imports it by name, but {module}.{qualname}"
    try:
        found = operator.attrgetter(qualname)(sys.modules[module])
    except (AttributeError, KeyError):
        raise ActionError(f"{text} is not there; make it a function of its module") from None
    if found is not function:
        raise ActionError(
            f"{text} is something else, such as a decorator's; let the decorator of the agent stand above it"
        )
    if module != "__main__":
        return Place(module, qualname)
    named = _name_of_main()
    if named is None:
        raise ActionError(f"{text} has no name to import; put it into a file, or run: stepward agent run MODULE")
    return Place(named, qualname)


def _name_of_main() -> str | None:
    """What the module that this process was started with is called by others. None: they cannot import it."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name
    path = getattr(main, "__file__", None)
    if path is None:
        return None
    try:
        spec = importlib.util.find_spec(Path(path).stem)
    except ValueError:
        return None
    return spec.name if spec is not None and spec.origin and Path(spec.origin).samefile(path) else None


def load(place: Place) -> Callable[..., Any]:
    """Import a handler; raises whatever its module raises."""
    function: Callable[..., Any] = operator.attrgetter(place.qualname)(importlib.import_module(place.module))
    return function
