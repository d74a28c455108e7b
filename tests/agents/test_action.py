"""How a signature turns input into arguments, and what returns and exceptions come to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from stepward.agents import ActionError, Agent, Context, Permanent, RetryAfter, StepFailed, Unknown, outcomes
from stepward.agents.action import Action, outcome_of_error, outcome_of_value
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import AttemptFacts
from stepward.v1 import agent_service_pb2 as wire


@dataclass
class Wish:
    """A dataclass."""

    who: str
    days: int = 2


class WishStruct(msgspec.Struct):
    """A struct."""

    who: str
    days: int = 2


@dataclass
class Measured:
    """A dataclass with a float."""

    metres: float


class MeasuredStruct(msgspec.Struct):
    """One within a struct."""

    inner: Measured


class WishDict(TypedDict):
    """A typed dict."""

    who: str


def context() -> Context:
    facts = AttemptFacts(
        job_id="0-job",
        step_id="a",
        token=7,
        idempotency_key="k",
        attempt=1,
        definition_name="trip",
        undo=False,
        deadline_ms=0,
    )
    return Context(facts, steady_ms=lambda: 0, on_progress=lambda details: None)


def bound(function: Callable[..., Any], data: bytes = b'{"who": "Ada"}', encoding: str = "") -> dict[str, Any]:
    return Action("a", function).arguments(data, encoding, context())


def takes_nothing() -> None: ...
def takes_names(who: str, days: int = 2) -> None: ...
def takes_one_name(who: str) -> None: ...
def takes_one_unannotated(who) -> None: ...  # type: ignore[no-untyped-def]  # that is the case
def takes_dataclass(wish: Wish) -> None: ...
def takes_struct(wish: WishStruct) -> None: ...
def takes_typed_dict(wish: WishDict) -> None: ...
def takes_dict(wish: dict[str, Any]) -> None: ...
def takes_mapping(wish: Mapping[str, Any]) -> None: ...
def takes_any(wish: Any) -> None: ...
def takes_optional(wish: Wish | None) -> None: ...
def takes_input_of_any_kind(input: dict[str, str]) -> None: ...
def takes_bytes(data: bytes) -> None: ...
def takes_raw(data: msgspec.Raw) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (takes_nothing, {}),
        # Defaults stay those of the function.
        (takes_names, {"who": "Ada"}),
        (takes_one_name, {"who": "Ada"}),
        (takes_one_unannotated, {"who": "Ada"}),
        # What stands for an object gets the whole input.
        (takes_dataclass, {"wish": Wish("Ada")}),
        (takes_struct, {"wish": WishStruct("Ada")}),
        (takes_typed_dict, {"wish": {"who": "Ada"}}),
        (takes_dict, {"wish": {"who": "Ada"}}),
        (takes_mapping, {"wish": {"who": "Ada"}}),
        (takes_any, {"wish": {"who": "Ada"}}),
        (takes_optional, {"wish": Wish("Ada")}),
        (takes_input_of_any_kind, {"input": {"who": "Ada"}}),
        # Bytes are passed on as they are.
        (takes_bytes, {"data": b'{"who": "Ada"}'}),
        (takes_raw, {"data": msgspec.Raw(b'{"who": "Ada"}')}),
    ],
)
def test_input_becomes_arguments(function: Callable[..., Any], expected: dict[str, Any]) -> None:
    assert bound(function) == expected


def test_input_may_be_no_object() -> None:
    def handler(input: int) -> None: ...

    assert bound(handler, b"7") == {"input": 7}


def test_context_is_found_by_its_annotation_wherever_it_stands() -> None:
    def handler(who: str, run: Context, days: int = 2) -> None: ...

    arguments = bound(handler)
    assert isinstance(arguments.pop("run"), Context)
    assert arguments == {"who": "Ada"}


def test_constraints_of_annotations_are_checked() -> None:
    def handler(days: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    with pytest.raises(Permanent, match=r"\$\.days"):
        bound(handler, b'{"days": 0}')


def test_mutable_default_is_left_to_the_function() -> None:
    def handler(who: str, tags: list[str] = ["a"]) -> None: ...  # noqa: B006 - users write that

    assert bound(handler) == {"who": "Ada"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # Every field has a default, or none is needed.
        (takes_dict, {"wish": {}}),
        (takes_any, {"wish": None}),
        (takes_nothing, {}),
    ],
)
def test_absent_input(function: Callable[..., Any], expected: dict[str, Any]) -> None:
    """A job may have none."""
    assert bound(function, b"") == expected


@pytest.mark.parametrize(
    ("function", "data", "encoding", "says"),
    [
        (takes_names, b'{"who": 7}', "", r"Expected `str`, got `int` - at `\$\.who`"),
        (takes_names, b"{}", "", "missing required field `who`"),
        (takes_names, b"", "", "missing required field `who`"),
        (takes_names, b"[]", "", "Expected `object`, got `array`"),
        (takes_struct, b'{"who": "Ada", "days": "2"}', "json/utf-8", r"\$\.days"),
        (takes_names, b"{", "", "truncated"),
        (takes_names, b"\x00", "application/octet-stream", "encoding is 'application/octet-stream'"),
    ],
)
def test_wrong_input_is_permanent_and_names_the_place(
    function: Callable[..., Any], data: bytes, encoding: str, says: str
) -> None:
    with pytest.raises(Permanent, match=says) as raised:
        bound(function, data, encoding)

    assert raised.value.kind == "INVALID_INPUT"


def test_bytes_take_any_encoding() -> None:
    assert bound(takes_bytes, b"\x00", "image/png") == {"data": b"\x00"}


def takes_any_number(*who: str) -> None: ...
def takes_any_keyword(**who: str) -> None: ...
def takes_positional(who: str, /) -> None: ...
def takes_input_and_more(input: Wish, days: int) -> None: ...
def takes_undecodable(wish: Wish | WishStruct) -> None: ...
def is_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (takes_any_number, "takes any number of arguments"),
        (takes_any_keyword, "takes any keyword"),
        (takes_positional, "is positional-only"),
        (takes_input_and_more, "gets the whole input"),
        (takes_undecodable, "cannot be read"),
        (is_generator, "is a generator"),
        (functools.partial(takes_one_name), "is a partial; it must be a function"),
    ],
)
def test_signature_that_cannot_work_is_refused_when_it_is_written(function: Callable[..., Any], says: str) -> None:
    """Not when the first job comes."""
    with pytest.raises(ActionError, match=says):
        Action("a", function)


def test_annotation_that_cannot_be_resolved_is_refused() -> None:
    def handler(wish: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821 - that is the case

    with pytest.raises(ActionError, match="Nowhere"):
        Action("a", handler)


def test_names_of_actions() -> None:
    """That of the function with `-` for `_`, unless given; one handler each."""
    agent = Agent()

    @agent.action
    def book_flight() -> None: ...

    @agent.action("cancel")
    def anything() -> None: ...

    assert list(agent.actions) == ["book-flight", "cancel"]
    with pytest.raises(ActionError, match="two handlers of 'cancel'"):
        agent.action("cancel")(book_flight)


@pytest.mark.parametrize(
    ("value", "output", "encoding"),
    [
        (None, b"null", "json/utf-8"),
        ({"a": 1}, b'{"a":1}', "json/utf-8"),
        (Wish("Ada"), b'{"who":"Ada","days":2}', "json/utf-8"),
        (msgspec.Raw(b'{"price": 1.10}'), b'{"price": 1.10}', "json/utf-8"),
        (msgspec.Raw(b"null"), b"null", "json/utf-8"),
        ([None, 1.5, Wish("Ada"), msgspec.Raw(b"null")], b'[null,1.5,{"who":"Ada","days":2},null]', "json/utf-8"),
        (b"\x00", b"\x00", "application/octet-stream"),
    ],
)
def test_value_becomes_output(value: Any, output: bytes, encoding: str) -> None:
    assert outcome_of_value(value) == outcomes.Succeeded(output, encoding)


@pytest.mark.parametrize("value", [object(), {1j: 1}, "\ud800"])
def test_value_without_a_json_form_fails_for_good(value: Any) -> None:
    """The same code would give the same again."""
    outcome = outcome_of_value(value)

    assert isinstance(outcome, outcomes.Failed)
    assert (outcome.kind, outcome.retryable) == ("INVALID_OUTPUT", False)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "the output is nan"),
        ({"prices": [1.5, float("inf")]}, "the output.prices[1] is inf"),
        ((None, Measured(-float("inf"))), "the output[1].metres is -inf"),
        (MeasuredStruct(Measured(float("nan"))), "the output.inner.metres is nan"),
    ],
)
def test_no_number_is_not_made_a_null(value: Any, place: str) -> None:
    """JSON has no form for it, and the next step would take the null for a value."""
    outcome = outcome_of_value(value)

    assert isinstance(outcome, outcomes.Failed)
    assert (outcome.kind, outcome.may_have_happened) == ("INVALID_OUTPUT", True)
    assert f"{place}, which JSON cannot hold" in outcome.message


class SeatTaken(StepFailed):
    """A failure of a user's own, with a class for its kind."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Permanent("no"), outcomes.Failed("Permanent", "no", retryable=False)),
        (Permanent("no", kind="Full"), outcomes.Failed("Full", "no", retryable=False)),
        (RetryAfter(0.5, "busy"), outcomes.Failed("RetryAfter", "busy", retry_after_ms=500)),
        (SeatTaken("taken"), outcomes.Failed("SeatTaken", "taken")),
        (Unknown("no answer"), outcomes.Unknown("Unknown", "no answer")),
        (ValueError("bad"), outcomes.Failed("ValueError", "bad", may_have_happened=True)),
        # An exception without words still says something.
        (KeyError(), outcomes.Failed("KeyError", "KeyError", may_have_happened=True)),
    ],
)
def test_error_becomes_outcome(error: Exception, outcome: outcomes.Outcome) -> None:
    assert outcome_of_error(error) == outcome


@pytest.mark.parametrize("seconds", [-0.1, float("inf"), float("nan")])
def test_retry_after_takes_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds from 0 on"):
        RetryAfter(seconds)


@pytest.mark.parametrize(
    ("text", "bytes_max", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc"),
        # On a character border.
        ("aé", 2, "a"),
        ("aé", 3, "aé"),
        # What UTF-8 has no bytes for.
        ("a\ud800", 9, "a?"),
    ],
)
def test_message_is_cut_on_a_character_border(text: str, bytes_max: int, expected: str) -> None:
    assert outcomes.cut(text, bytes_max) == expected


class UnspeakableError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:  # type: ignore[explicit-override]  # typing.override came with Python 3.12
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        # NUL is a character like others.
        (ValueError("a\0b"), "ValueError", "a\0b"),
        # Half of an emoji has no bytes.
        (ValueError("seat \ud83d"), "ValueError", "seat ?"),
        (Permanent("no\udc00", kind="Full\udfff"), "Full?", "no?"),
        (Unknown("no\udc00", kind="Full\udfff"), "Full?", "no?"),
        # Cut on a character border: four bytes each.
        (Permanent("\U0001f6eb" * 1_025), "Permanent", "\U0001f6eb" * 1_024),
        (Permanent("x" + "\U0001f6eb" * 1_024), "Permanent", "x" + "\U0001f6eb" * 1_023),
        (Permanent("x" * 4_096), "Permanent", "x" * 4_096),
        (Permanent("x" * 4_097), "Permanent", "x" * 4_096),
        (Permanent("", kind="k" * 129), "k" * 128, ""),
        # What people do: they pass on what they caught.
        (Permanent(LookupError("no seat")), "Permanent", "no seat"),  # type: ignore[arg-type]  # that is the case
        (UnspeakableError(), "UnspeakableError", "<exception str() failed>"),
        (KeyError(), "KeyError", "KeyError"),
    ],
    ids=lambda value: None,
)
def test_h059_text_of_an_exception_always_travels(error: BaseException, kind: str, message: str) -> None:
    """H059: what cannot be sent would end the stream, and be tried again on the next one."""
    sent = outcomes.report(AttemptKey("0-job", "a", 7), outcome_of_error(error), draining=False)
    heard = wire.AttemptReport.FromString(sent.SerializeToString())
    said = heard.failed if heard.HasField("failed") else heard.unknown

    assert (said.kind, said.message) == (kind, message)
