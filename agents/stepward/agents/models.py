"""Models of pydantic in the signatures of handlers: validated on the way in, dumped on the way out.

Nothing here imports pydantic: whoever annotates a handler with a model has imported it, so it is looked for among what
is loaded, and where it is not installed there are no models.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from typing import Any


class ModelError(ValueError):
    """A value does not fit a model. The message names the places, and shows no values."""


def is_model(kind: Any) -> bool:
    """Whether this is a model's class."""
    base = _base()
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def has_model(annotation: Any) -> bool:
    """Whether a model stands in the annotation, at any depth."""
    if _base() is None:
        return False
    return is_model(annotation) or any(has_model(one) for one in typing.get_args(annotation))


def reader(annotation: Any) -> Callable[[bytes], Any]:
    """What reads JSON as the annotation says; raises ModelError."""
    adapter = _adapter(annotation)
    return _telling(adapter.validate_json)


def checker(annotation: Any) -> Callable[[Any], Any]:
    """What makes of a value what the annotation says; raises ModelError."""
    adapter = _adapter(annotation)
    return _telling(adapter.validate_python)


def plain(value: Any) -> Any:
    """A model as values that have a JSON form, by its own settings; what the encoder asks about what it does not know.

    Raises:
        TypeError: It is no model.
    """
    base = _base()
    if base is None or not isinstance(value, base):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return value.model_dump(mode="json")  # type: ignore[attr-defined]  # the base was found at run time


def _base() -> type | None:
    """The root of all models, of pydantic 2. None: it is not loaded."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base if isinstance(base, type) and hasattr(base, "model_validate_json") else None


def _adapter(annotation: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(annotation)


def _telling(validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, with an error that names places and no values: it is kept, shown and logged."""
    validation_error: type[ValueError] = sys.modules["pydantic"].ValidationError

    def validated(value: Any) -> Any:
        try:
            return validate(value)
        except validation_error as error:
            raise ModelError("; ".join(_line(one) for one in _errors(error))) from None

    return validated


def _errors(error: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = error.errors(include_url=False, include_context=False, include_input=False)
    return found


def _line(error: dict[str, Any]) -> str:
    """As msgspec says it: what, then where."""
    place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error["loc"])
    return f"{error['msg']} - at `${place}`"
