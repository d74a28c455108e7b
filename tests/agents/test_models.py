"""Handlers that are annotated with models of pydantic, and that nothing of ours needs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_serializer

from stepward.agents import Agent, Permanent, outcomes
from stepward.agents.action import Action
from stepward.agents.testing import new_context, run_action


class Wish(BaseModel):  # type: ignore[misc, unused-ignore]  # where pydantic is not installed its types are unknown
    """A model with a rule and a name of its own on the wire."""

    who: str
    days: int = Field(default=2, ge=1)
    class_: str = Field(default="economy", alias="class")


class Broken(BaseModel):  # type: ignore[misc, unused-ignore]  # as above
    """A model that cannot be dumped."""

    @model_serializer
    def dump(self) -> dict[str, Any]:
        return {"a": 1 // 0}


class Measured(BaseModel):  # type: ignore[misc, unused-ignore]  # as above
    """A model with a number."""

    metres: float = 0.0
    note: str | None = None


def takes_model(wish: Wish) -> None: ...
def takes_optional(wish: Wish | None) -> None: ...
def takes_many(input: list[Wish]) -> None: ...
def takes_fields(wish: Wish, seat: str, back: Wish | None = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "data", "expected"),
    [
        (takes_model, b'{"who":"Ada","class":"first"}', {"wish": {"who": "Ada", "days": 2, "class_": "first"}}),
        (takes_optional, b'{"who":"Ada"}', {"wish": {"who": "Ada", "days": 2, "class_": "economy"}}),
        (takes_optional, b"null", {"wish": None}),
        (takes_many, b'[{"who":"Ada"}]', {"input": [{"who": "Ada", "days": 2, "class_": "economy"}]}),
        (
            takes_fields,
            b'{"wish":{"who":"Ada"},"seat":"1A","more":1}',
            {"wish": {"who": "Ada", "days": 2, "class_": "economy"}, "seat": "1A"},
        ),
    ],
)
def test_input_becomes_models(function: Callable[..., Any], data: bytes, expected: dict[str, Any]) -> None:
    arguments = Action("a", function).arguments(data, outcomes.JSON, new_context())

    assert {name: as_values(value) for name, value in arguments.items()} == expected


def as_values(value: Any) -> Any:
    """Models as dictionaries, so that a dictionary that was no model shows."""
    if isinstance(value, list):
        return [as_values(one) for one in value]
    return value.model_dump() if isinstance(value, BaseModel) else ("no model", value) if value == {} else value


@pytest.mark.parametrize(
    ("function", "data", "says"),
    [
        (takes_model, b'{"who":"Ada","days":0}', r"greater than or equal to 1 - at `\$\.days`"),
        (takes_model, b"", r"Field required - at `\$\.who`"),
        (takes_many, b'[{"who":"Ada"},{}]', r"Field required - at `\$\[1\]\.who`"),
        (takes_fields, b'{"wish":{},"seat":"1A"}', r"wish: Field required - at `\$\.who`"),
        (takes_fields, b'{"seat":"1A"}', "missing required field `wish`"),
        (takes_model, b"{", "Invalid JSON"),
    ],
)
def test_input_that_does_not_fit_its_model_never_happened(function: Callable[..., Any], data: bytes, says: str) -> None:
    """The handler was not called, so nothing is to be undone; and the value is not told."""
    with pytest.raises(Permanent, match=says) as raised:
        Action("a", function).arguments(data, outcomes.JSON, new_context())

    assert raised.value.kind == "INVALID_INPUT"
    assert "Ada" not in raised.value.message


def returns_model() -> Wish:
    return Wish(who="Ada")


def returns_models() -> list[Wish]:
    return []


def returns_anything() -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "value", "output"),
    [
        (returns_model, Wish(who="Ada"), b'{"who":"Ada","days":2,"class_":"economy"}'),
        # What it says that it returns is what the next step gets.
        (returns_model, {"who": "Ada"}, b'{"who":"Ada","days":2,"class_":"economy"}'),
        (returns_models, [{"who": "Ada"}], b'[{"who":"Ada","days":2,"class_":"economy"}]'),
        (returns_anything, {"of": [Wish(who="Ada")]}, b'{"of":[{"who":"Ada","days":2,"class_":"economy"}]}'),
        (returns_anything, Measured(), b'{"metres":0.0,"note":null}'),
    ],
)
def test_models_become_output(function: Callable[..., Any], value: Any, output: bytes) -> None:
    assert Action("a", function).outcome_of_value(value) == outcomes.Succeeded(output)


@pytest.mark.parametrize(
    ("function", "value", "says"),
    [
        (returns_model, {"days": 3}, "not what the handler says it returns: Field required - at `$.who`"),
        (returns_model, None, "not what the handler says it returns"),
        (returns_anything, Broken(), "has no JSON form"),
        # Pydantic writes null for it, which the next step would take for a value.
        (returns_anything, Measured(metres=float("nan")), "the output.metres is nan"),
    ],
)
def test_output_that_does_not_fit_may_have_happened(function: Callable[..., Any], value: Any, says: str) -> None:
    """The handler has done its work; it only cannot say what came of it. The same code would give the same again."""
    outcome = Action("a", function).outcome_of_value(value)

    assert isinstance(outcome, outcomes.Failed)
    assert (outcome.kind, outcome.retryable, outcome.may_have_happened) == ("INVALID_OUTPUT", False, True)
    assert says in outcome.message


async def test_handler_under_test_is_held_to_its_models() -> None:
    agent = Agent()

    @agent.action
    def book(wish: Wish) -> Measured:
        return Measured.model_construct(metres="far" if wish.days > 2 else 1.5)

    assert await run_action(agent, "book", {"who": "Ada"}) == {"metres": 1.5, "note": None}


WITHOUT = """
import sys
from dataclasses import dataclass

if "blocked" in sys.argv:
    sys.modules["pydantic"] = None
from stepward.agents import Agent
from stepward.agents.testing import run_action
import asyncio

@dataclass
class Wish:
    who: str

agent = Agent()

@agent.action
def book(wish: Wish) -> Wish:
    return wish

@agent.action
def wrong() -> object:
    return object()

print(asyncio.run(run_action(agent, "book", {"who": "Ada"})))
print(sys.modules.get("pydantic"))
try:
    asyncio.run(run_action(agent, "wrong"))
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("pydantic", ["installed", "blocked"])
def test_nothing_of_ours_imports_it(pydantic: str) -> None:
    """Who does not use models neither needs pydantic nor waits for it to load."""
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT, pydantic], capture_output=True, text=True, check=True, timeout=60
    )

    assert said.stdout.splitlines() == [
        "{'who': 'Ada'}",
        "None",
        "the output of type object has no JSON form: Encoding objects of type object is unsupported",
    ]
