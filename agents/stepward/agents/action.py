"""A handler as the agent calls it: its signature says how the input becomes arguments, its result becomes an outcome.

The rules of a signature:

- A parameter annotated `Context` gets the context, wherever it stands.
- A parameter named `input`, or the only other one if it is annotated with a type that stands for a whole object
  (dataclass, msgspec.Struct, TypedDict, pydantic model, dict, Any, bytes, msgspec.Raw), gets the whole input.
- Otherwise every parameter gets the field of its name; fields that no parameter names are left aside, since a step
  without a mapping gets the job's whole input.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stepward.agents import models, outcomes
from stepward.agents.context import Context
from stepward.agents.errors import ActionError, Permanent, RetryAfter, StepFailed, Unknown
from stepward.agents.isolation import Place, place_of

_JSON_ENCODINGS: Final = frozenset({"", outcomes.JSON})
_UNNAMEABLE: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}

_log = logging.getLogger("stepward.agents.action")

Bind = Callable[[bytes, str], Mapping[str, Any]]


class Action:
    """One handler under its name."""

    def __init__(self, name: str, function: Callable[..., Any], *, process: bool = False) -> None:
        """Read the signature. `process`: it runs in a process of its own.

        Raises:
            ActionError: The function cannot be a handler.
        """
        if not inspect.isroutine(function):
            raise ActionError(f"the handler of {name!r} is a {type(function).__name__}; it must be a function")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ActionError(f"the handler of {name!r} is a generator; it must return its output")
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.in_process = process
        self.place: Place | None = None
        """Where its process finds it; known when the agent serves, since the module is not read to its end before."""
        if process and self.is_async:
            raise ActionError(f"the handler of {name!r} is async; in a process of its own it must be a plain function")
        parameters, returned = _signature(name, function)
        self._check_output = models.checker(returned) if models.has_model(returned) else None
        self._context_names = tuple(one for one, kind in parameters.items() if _is_context(kind.annotation))
        others = {one: kind for one, kind in parameters.items() if one not in self._context_names}
        try:
            self._bind = _binding(others)
        except TypeError as error:
            raise ActionError(f"the input of {name!r} cannot be read: {error}") from None

    def locate(self) -> None:
        """See to it that its process will find it.

        Raises:
            ActionError: It would not; the message says why.
        """
        if self.in_process:
            self.place = place_of(self.name, self.function)

    def arguments(self, data: bytes, encoding: str, context: Context) -> dict[str, Any]:
        """The keyword arguments of a call.

        Raises:
            Permanent: The input does not fit the signature; kind INVALID_INPUT, and the message names the place.
        """
        try:
            bound = self._bind(data, encoding)
        except (msgspec.DecodeError, models.ModelError, _WrongEncodingError) as error:
            raise Permanent(f"the input does not fit the handler: {error}", kind=outcomes.INVALID_INPUT) from None
        return {**bound, **dict.fromkeys(self._context_names, context)}

    def outcome_of_value(self, value: Any) -> outcomes.Outcome:
        """What a returned value comes to; a handler that says it returns a model is held to it."""
        if self._check_output is not None:
            try:
                value = self._check_output(value)
            except Exception as error:  # noqa: BLE001 - validators are the user's code
                _log.error("output_invalid action=%s", self.name, exc_info=error)
                return _invalid_output(f"the output is not what the handler says it returns: {error}")
        return outcome_of_value(value)


class _WrongEncodingError(ValueError):
    """The input is not JSON."""


def _signature(name: str, function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], Any]:
    """The parameters with their annotations resolved, and the annotation of what is returned."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        text = f"the annotations of the handler of {name!r} cannot be resolved ({error}); name types of the module"
        raise ActionError(text) from None
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _UNNAMEABLE:
            text = f"parameter {parameter.name!r} of the handler of {name!r} {_UNNAMEABLE[parameter.kind]}"
            raise ActionError(f"{text}; every parameter must have a name that a field of the input can have")
        found[parameter.name] = parameter.replace(annotation=hints.get(parameter.name, inspect.Parameter.empty))
    return found, hints.get("return")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; without what Annotated adds."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(inner for one in typing.get_args(annotation) for inner in _alternatives(one))
    return (annotation,)


def _is_context(annotation: Any) -> bool:
    return Context in _alternatives(annotation)


def _stands_for_whole_input(annotation: Any) -> bool:
    return any(_is_object(one) for one in _alternatives(annotation))


def _is_object(annotation: Any) -> bool:
    kind = typing.get_origin(annotation) or annotation
    if kind is Any or kind in (bytes, msgspec.Raw) or typing.is_typeddict(kind):
        return True
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct | Mapping) or dataclasses.is_dataclass(kind):
        return True
    return hasattr(kind, "__attrs_attrs__") or models.is_model(kind)


def _binding(parameters: dict[str, inspect.Parameter]) -> Bind:
    """How the input becomes arguments.

    Raises:
        TypeError: An annotation is none that msgspec can decode.
    """
    if not parameters:
        return lambda data, encoding: {}
    if len(parameters) == 1:
        (parameter,) = parameters.values()
        if parameter.name == "input" or _stands_for_whole_input(parameter.annotation):
            return _whole_input(parameter)
    elif "input" in parameters:
        raise TypeError("a parameter named `input` gets the whole input; beside it only a Context can stand")
    return _fields_by_name(parameters)


def _annotation(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation


def _whole_input(parameter: inspect.Parameter) -> Bind:
    name, annotation = parameter.name, _annotation(parameter)
    if annotation is bytes:
        return lambda data, encoding: {name: data}
    if annotation is msgspec.Raw:
        return lambda data, encoding: {name: msgspec.Raw(_json(data, encoding, b"null"))}
    read = models.reader(annotation) if models.has_model(annotation) else msgspec.json.Decoder(annotation).decode
    # A job without input starts a handler whose fields all have defaults.
    absent = b"{}" if any(_is_object(one) and one is not Any for one in _alternatives(annotation)) else b"null"
    return lambda data, encoding: {name: read(_json(data, encoding, absent))}


def _fields_by_name(parameters: dict[str, inspect.Parameter]) -> Bind:
    """One decoder for all parameters. Defaults stay those of the function: what is absent is not passed."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    read: dict[str, Callable[[bytes], Any]] = {}
    for name, parameter in parameters.items():
        annotation = _annotation(parameter)
        if models.has_model(annotation):
            # Cut out as it stands, and read by the model itself.
            read[name] = _reader_of_field(name, annotation)
            annotation = msgspec.Raw
        if parameter.default is inspect.Parameter.empty:
            fields.append((name, annotation))
        else:
            fields.append((name, typing.Union[annotation, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - `|` needs types, annotations are any form
    decoder = msgspec.json.Decoder(msgspec.defstruct("Input", fields, kw_only=True))

    def bind(data: bytes, encoding: str) -> Mapping[str, Any]:
        found = decoder.decode(_json(data, encoding, b"{}"))
        values = {name: getattr(found, name) for name in parameters}
        present = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return {name: read[name](bytes(value)) if name in read else value for name, value in present.items()}

    return bind


def _reader_of_field(name: str, annotation: Any) -> Callable[[bytes], Any]:
    """A model's reader whose errors say in which field the place is."""
    read = models.reader(annotation)

    def read_field(data: bytes) -> Any:
        try:
            return read(data)
        except models.ModelError as error:
            raise models.ModelError(f"{name}: {error}") from None

    return read_field


def _json(data: bytes, encoding: str, absent: bytes) -> bytes:
    if encoding not in _JSON_ENCODINGS:
        raise _WrongEncodingError(f"its encoding is {encoding!r}; only a parameter annotated `bytes` takes that")
    return data or absent


def outcome_of_value(value: Any) -> outcomes.Outcome:
    """What a returned value comes to. `bytes` are opaque, `msgspec.Raw` is JSON already, models dump themselves."""
    if isinstance(value, bytes | bytearray | memoryview):
        return outcomes.Succeeded(bytes(value), outcomes.BYTES)
    try:
        encoded = msgspec.json.encode(value, enc_hook=models.plain)
        # The encoder writes null for what is no number. Most outputs have no null, so they are spared the walk.
        if b"null" in encoded:
            _refuse_no_numbers(msgspec.to_builtins(value, enc_hook=_plain), "the output")
        return outcomes.Succeeded(encoded)
    except Exception as error:  # noqa: BLE001 - serializers of models and properties of values are the user's code
        _log.error("output_invalid type=%s", type(value).__name__, exc_info=error)
        return _invalid_output(f"the output of type {type(value).__name__} has no JSON form: {error}")


def _invalid_output(text: str) -> outcomes.Outcome:
    """The work is done, and what came of it cannot be passed on."""
    return outcomes.Failed(outcomes.INVALID_OUTPUT, text, retryable=False, may_have_happened=True)


def _plain(value: Any) -> Any:
    """Raw JSON has been looked at by whoever made it."""
    return None if isinstance(value, msgspec.Raw) else models.plain(value)


def _refuse_no_numbers(value: Any, place: str) -> None:
    """Raise ValueError where a float is NaN or infinite: the next step would take the null for a value."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON cannot hold; return null or a text instead")
        case dict():
            for key, inner in value.items():
                _refuse_no_numbers(inner, f"{place}.{key}")
        case list() | tuple() | set() | frozenset():
            for number, inner in enumerate(value):
                _refuse_no_numbers(inner, f"{place}[{number}]")


def outcome_of_error(error: BaseException) -> outcomes.Outcome:
    """What a raised exception comes to."""
    match error:
        case Unknown():
            return outcomes.Unknown(error.kind, error.message)
        case Permanent():
            return outcomes.Failed(error.kind, error.message, retryable=False)
        case RetryAfter():
            return outcomes.Failed(error.kind, error.message, retry_after_ms=round(error.seconds * 1_000))
        case StepFailed():
            return outcomes.Failed(error.kind, error.message)
        case _:
            # Nobody said that it did not happen: a request may have left before the exception came.
            said = outcomes.text_of(error) or type(error).__name__
            return outcomes.Failed(type(error).__name__, said, may_have_happened=True)
