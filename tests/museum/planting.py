"""How a fault is planted: a few lines of one function are replaced while it is on, and put back afterwards.

The function itself stays the same object and is only given other code, so whoever imported it by name meets the fault,
too. What cannot be planted exactly as written raises: a fault that is not there would be seen by nobody.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlantingError(Exception):
    """A fault cannot be planted as it is written: what it changes has changed."""


class Patch(NamedTuple):
    """Lines of one function, and what stands in their place. `where` is "module:function" or "module:Class.method"."""

    where: str
    old: str
    new: str


@contextmanager
def planted(patch: Patch) -> Iterator[None]:
    """The fault is there while this is entered."""
    function = _function(patch.where)
    sound = function.__code__
    function.__code__ = _compiled(patch, function)
    try:
        yield
    finally:
        function.__code__ = sound


def _function(where: str) -> FunctionType:
    """The function of a name, behind whatever makes it a property or a class method."""
    module_name, _, path = where.partition(":")
    owner: object = importlib.import_module(module_name)
    for name in path.split("."):
        if (not isinstance(owner, type) and not inspect.ismodule(owner)) or name not in vars(owner):
            msg = f"{where}: there is no {name!r} in {owner!r}"
            raise PlantingError(msg)
        owner = vars(owner)[name]
    found = owner.fget if isinstance(owner, property) else getattr(owner, "__func__", owner)
    if not isinstance(found, FunctionType):
        msg = f"{where} is no function of Python, but {found!r}"
        raise PlantingError(msg)
    return found


def edited(patch: Patch) -> str:
    """The source of the function with the fault in it."""
    source = textwrap.dedent(inspect.getsource(_function(patch.where)))
    if (times := source.count(patch.old)) != 1:
        msg = f"{patch.where}: {patch.old!r} stands there {times} times, and must stand there once"
        raise PlantingError(msg)
    return source.replace(patch.old, patch.new)


def _compiled(patch: Patch, function: FunctionType) -> CodeType:
    """The code of the function with the fault in it, compiled as its module is."""
    sound = function.__code__
    tree = ast.parse(edited(patch))
    ast.increment_lineno(tree, sound.co_firstlineno - 1)
    flags = sound.co_flags & __future__.annotations.compiler_flag
    module = compile(tree, sound.co_filename, "exec", flags=flags, dont_inherit=True)
    codes = [code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == sound.co_name]
    if len(codes) != 1 or codes[0].co_freevars != sound.co_freevars:
        msg = f"{patch.where}: a function that is made inside another one cannot be given other code"
        raise PlantingError(msg)
    return codes[0]
