"""Definitions built in Python: what they give, and what is said where they go wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_args

import pytest

from stepward.client import Definition, DefinitionError, Retry, Timeouts, Undo, Verify, input_, literal, text
from stepward.client import definition_options as options
from stepward.client.definition_file import enum_words, load, loads
from stepward.client.definition_forms import definition_message
from stepward.client.definition_options import FACTOR_MAX, NAME_CHARS_MAX
from stepward.client.references import INDEX_MAX, template
from stepward.client.yaml_nodes import DEPTH_MAX
from stepward.v1 import definition_pb2 as pb
from tests.client.test_definition_file import TRIP, TRIP_DEFINITION


def test_everything_can_be_said() -> None:
    """The same bytes as the file that sets every field of the contract."""
    trip = Definition("trip", description="Books a trip, or nothing.", deadline="2h", on_deadline="cancel")
    flight = trip.step(
        "flight",
        action="book-flight",
        queue="trip",
        input={"who": input_("who"), "to": input_("to")},
        retry=Retry(
            attempts_max=3,
            initial=1,
            factor=2,
            cap="10s",
            non_retryable_kinds=["SoldOut"],
            time_max=timedelta(minutes=5),
        ),
        timeouts=Timeouts(start_to_close="30s", queue="1h", heartbeat=5, schedule_to_close="1h30m"),
        effect="non_idempotent",
        start="on_accept",
        on_unknown="compensate",
        on_exhausted="continue",
        reassign="avoid_same_agent",
        approval="required",
        undo=Undo(
            "cancel-flight",
            retry=Retry(initial=0.5),
            timeouts=Timeouts(start_to_close="1d"),
            queue="undo",
            effect="non_idempotent",
        ),
        verify=Verify("find-flight", retry=Retry(attempts_max=2), timeouts=Timeouts(queue="1m"), queue="desk"),
    )
    trip.step("hotel", needs=[flight])
    trip.output({"flight": flight.output("id")})

    assert trip.to_proto() == TRIP_DEFINITION == loads(trip.to_yaml()) == loads(TRIP)
    assert trip.to_proto().SerializeToString(deterministic=True) == loads(TRIP).SerializeToString(deterministic=True)


def test_words_are_those_of_the_contract() -> None:
    """A word that is added there is a word here."""
    fields = pb.Step.DESCRIPTOR.fields_by_name
    on_deadline: Any = pb.Definition.DESCRIPTOR.fields_by_name["on_deadline"]

    for alias, name in (
        (options.Effect, "effect"),
        (options.StartMode, "start"),
        (options.OnUnknown, "on_unknown"),
        (options.OnExhausted, "on_exhausted"),
        (options.Reassign, "reassign"),
        (options.Approval, "approval"),
    ):
        descriptor: Any = fields[name]
        assert get_args(alias) == tuple(enum_words(descriptor))
    assert set(get_args(options.UndoEffect)) < set(get_args(options.Effect))
    assert get_args(options.OnDeadline) == tuple(enum_words(on_deadline))


def test_fan_in_over_nothing_is_refused() -> None:
    """H056: as a root it would run first instead of last, and its job would end before the branches."""
    definition = Definition("fan")
    branches = [definition.step(f"branch-{number}") for number in range(0)]

    with pytest.raises(DefinitionError, match="step 'join': needs is empty"):
        definition.step("join", needs=branches)
    with pytest.raises(DefinitionError, match="step 'join': needs is empty"):
        definition.step("join", needs=definition.sinks())
    definition.step("root")
    assert list(definition.step("join", needs=definition.sinks()).definition.to_proto().steps[1].needs) == ["root"]


def test_sinks_are_what_nothing_needs() -> None:
    """The one way to say: after everything."""
    fan = Definition("fan")
    root = fan.step("root")
    branches = [fan.step(f"branch-{number}", needs=[root]) for number in range(3)]
    join = fan.step("join", needs=fan.sinks())

    assert list(fan.to_proto().steps[4].needs) == [branch.id for branch in branches]
    assert fan.sinks() == [join]
    assert fan.steps == (root, *branches, join)


def test_undo_and_verify_may_be_just_an_action() -> None:
    plain = Definition("plain")
    plain.step("a", undo="undo-a", verify="verify-a")

    assert plain.to_proto().steps[0] == pb.Step(
        id="a", undo=pb.Undo(action="undo-a"), verify=pb.Verify(action="verify-a")
    )


def test_given_message_is_a_copy() -> None:
    """What was handed out is not changed by a later step, nor the other way round."""
    plain = Definition("plain")
    plain.step("a")
    before = plain.to_proto()
    plain.step("b")
    before.name = "other"

    assert (len(before.steps), plain.to_proto().name) == (1, "plain")


def test_path_of_a_file_and_all_other_forms_are_taken(tmp_path: Any) -> None:
    built = Definition("plain")
    built.step("a")
    path = tmp_path / "plain.yaml"
    path.write_text(built.to_yaml())

    forms = (built, built.to_proto(), path, str(path))
    assert [definition_message(form) for form in forms] == [load(path)] * 4


FLIGHT = Definition("trip").step("flight")
DOTTED = Definition("trip").step("book.flight")


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (input_(), '"${input}"'),
        (input_("who"), '"${input.who}"'),
        (input_("guests", 0, "last-name"), '"${input.guests[0].last-name}"'),
        (input_(INDEX_MAX), f'"${{input[{INDEX_MAX}]}}"'),
        (FLIGHT.output(), '"${steps.flight.output}"'),
        (FLIGHT.output("id"), '"${steps.flight.output.id}"'),
        # What the notation has no plain form for stands in brackets.
        (DOTTED.output("id"), '"${steps[\\"book.flight\\"].output.id}"'),
        (input_("any key", "größe", ""), '"${input[\\"any key\\"][\\"größe\\"][\\"\\"]}"'),
        (input_('say "x"'), '"${input[\\"say \\\\\\"x\\\\\\"\\"]}"'),
        (text("Dear ", input_("who"), "!"), '"Dear ${input.who}!"'),
        (text(input_("a"), input_("b")), '"${input.a}${input.b}"'),
        # Characters that would be read as a reference, or as the escape of one.
        (literal("${input.who}"), '"$${input.who}"'),
        (literal("$${x}"), '"$$$${x}"'),
        (text("costs $", input_("price")), '"costs $$${input.price}"'),
        (text("$", "{x} ", input_("a")), '"$${x} ${input.a}"'),
        ("$5, {x}, $ {", '"$5, {x}, $ {"'),
        ("$", '"$"'),
        ({"a": [1, 2.5, True, None, "x", {"b": ()}]}, '{"a":[1,2.5,true,null,"x",{"b":[]}]}'),
        ({"$": "ä"}, '{"$":"ä"}'),
        (2**70, str(2**70)),
    ],
)
def test_templates(value: Any, json: str) -> None:
    """Plain values stand for themselves; references are written as files write them."""
    assert template(value, "input") == json


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


def test_templates_are_as_deep_as_files() -> None:
    assert template(nested(DEPTH_MAX), "input").count("[") == DEPTH_MAX
    with pytest.raises(DefinitionError, match=f"nested deeper than {DEPTH_MAX} levels"):
        template(nested(DEPTH_MAX + 1), "input")


def trip() -> Definition:
    definition = Definition("trip")
    flight = definition.step("flight")
    definition.step("hotel", needs=[flight])
    definition.step("car", needs=[flight])
    return definition


def add(**fields: Any) -> Callable[[], object]:
    """A step is added to the trip."""
    return lambda: trip().step("new", **fields)


WRONG: list[tuple[Callable[[], object], str]] = [
    (add(needs=[]), "step 'new': needs is empty, so it would start before everything that it was to wait for; leave"),
    (lambda: Definition("x").step("a", needs=Definition("x").sinks()), "step 'a': needs is empty"),
    (add(needs="flight"), "step 'new': needs is 'flight'; write a list of steps"),
    (add(needs=FLIGHT), "step 'new': needs is DefinedStep(id='flight'); write a list of steps"),
    (add(needs=["hotl"]), "step 'new': needs has 'hotl', which is no step so far, did you mean \"hotel\"?"),
    (
        lambda: Definition("x").step("a", needs=["b"]),
        "step 'a': needs has 'b', which is no step so far; there are none",
    ),
    (add(needs=["car", "car"]), "step 'new': needs has 'car' twice"),
    (add(needs=[FLIGHT]), "step 'new': needs has DefinedStep(id='flight'), which is of another definition"),
    (add(needs=[3]), "step 'new': needs has 3; write a step or its id"),
    (lambda: trip().step("car"), "step 'car': trip has a step of this id already"),
    (lambda: trip().step("a/b"), "step 'a/b': id is 'a/b'; it must be 1 to 128 of A-Z a-z 0-9 . _ -"),
    (lambda: Definition("x" * (NAME_CHARS_MAX + 1)), "name is 'xxx"),
    (lambda: Definition("trip\n"), "name is 'trip\\n'"),
    (add(action=""), "step 'new': action is ''; it must be 1 to 128"),
    (add(queue=" "), "step 'new': queue is ' '"),
    # Words.
    (add(effect="idempotant"), "step 'new': effect is 'idempotant', did you mean \"idempotent\"?"),
    (add(start="later"), "step 'new': start is 'later'; there are on_offer, on_accept"),
    (add(on_exhausted="ask"), "step 'new': on_exhausted is 'ask'; there are compensate, escalate, continue, fail"),
    (add(reassign="another"), "step 'new': reassign is 'another'; there are any_agent, avoid_same_agent"),
    (add(approval="yes"), "step 'new': approval is 'yes'; there are not_required, required"),
    (add(on_unknown="ask"), "step 'new': on_unknown is 'ask'; there are escalate, compensate"),
    (lambda: Definition("x", on_deadline="cancle"), "definition x: on_deadline is 'cancle', did you mean \"cancel\"?"),  # type: ignore[arg-type]  # wrong on purpose
    # Things of another kind.
    (add(retry={"attempts_max": 3}), "step 'new': retry is {'attempts_max': 3}; write Retry(...)"),
    (add(timeouts="30s"), "step 'new': timeouts is '30s'; write Timeouts(...)"),
    (add(undo=3), "step 'new': undo is 3; write Undo(...) or the name of an action"),
    (add(verify=Undo("a")), "step 'new': verify is Undo(action='a'"),
    (add(undo="no name"), "step 'new': undo is 'no name'; it must be 1 to 128"),
    (lambda: Undo(""), "Undo: action is ''"),
    (lambda: Verify("a", queue=""), "Verify: queue is ''"),
    # Numbers at their bounds and one past.
    (lambda: Retry(attempts_max=0), "Retry: attempts_max is 0; it must be a whole number from 1 (nothing is repeated)"),
    (lambda: Retry(attempts_max=2**32), "Retry: attempts_max is 4294967296"),
    (lambda: Retry(attempts_max=True), "Retry: attempts_max is True"),
    (lambda: Retry(factor=0.99), "Retry: factor is 0.99; it must be a number between 1 and 100"),
    (lambda: Retry(factor=FACTOR_MAX + 0.1), "Retry: factor is 100.1"),
    (lambda: Retry(factor=float("nan")), "Retry: factor is nan"),
    (lambda: Retry(initial=2, cap=1), "Retry: initial is 2s; it must be at most cap, 1s"),
    (lambda: Retry(non_retryable_kinds="SoldOut"), "Retry: non_retryable_kinds is 'SoldOut'; write a list"),
    (lambda: Retry(non_retryable_kinds=[""]), "Retry: non_retryable_kinds has ''"),
    (lambda: Retry(time_max=0), "Retry: time_max is 0 ms; it must be between 1 and"),
    (
        lambda: Timeouts(heartbeat=2, start_to_close=1),
        "Timeouts: heartbeat is 2s; it must be at most start_to_close, 1s",
    ),
    (
        lambda: Timeouts(start_to_close=2, schedule_to_close=1),
        "Timeouts: start_to_close is 2s; it must be at most sched",
    ),
    (lambda: Timeouts(queue=2, schedule_to_close=1), "Timeouts: queue is 2s; it must be at most schedule_to_close, 1s"),
    # Durations.
    (lambda: Timeouts(queue=0), "Timeouts: queue is 0 ms; it must be between 1 and"),
    (lambda: Timeouts(queue=-1), "Timeouts: queue is -1000 ms"),
    (lambda: Timeouts(queue="30"), "Timeouts: queue: 30 has no unit; write 30s"),
    (lambda: Timeouts(queue=0.0001), "Timeouts: queue is 0.0001, which is finer than a millisecond"),
    (lambda: Timeouts(queue=timedelta(microseconds=1)), "which is finer than a millisecond"),
    (lambda: Timeouts(queue=True), "Timeouts: queue is True; write a timedelta, a text such as"),
    (lambda: Timeouts(queue=float("inf")), "Timeouts: queue is inf; write a timedelta"),
    (lambda: Timeouts(queue=1e300), "Timeouts: queue is 1"),
    (lambda: Definition("x", deadline="soon"), "definition x: deadline: 'soon' is not a duration"),
    # Inputs.
    (add(input="${input.who}"), "step 'new': input holds \"${\" in '${input.who}'; write input_(...)"),
    (add(input={"a": f"to {input_('who')}"}), "step 'new': input.a holds \"${\" in 'to ${input.who}'"),
    (add(input=text("to ", f"{input_('who')}")), "step 'new': input holds \"${\" in '${input.who}'"),
    (add(input={"a": [1, timedelta(1)]}), "step 'new': input.a[1] is a timedelta, which has no JSON form; write a str"),
    (add(input={"a": float("nan")}), "step 'new': input.a is nan, which JSON cannot hold"),
    (add(input={1: 2}), "step 'new': input has the key 1; the keys of a JSON object are strings"),
    (add(input={f"{input_()}": 2}), "step 'new': input has the key '${input}'; a key cannot hold a reference"),
    (add(input="\ud800"), "step 'new': input has no form in UTF-8: surrogates not allowed at character 0"),
    (add(input=text("a", 3)), "step 'new': input: text() is made of strings and references, not of a int"),  # type: ignore[arg-type]  # wrong on purpose
    (add(input=b"x"), "step 'new': input is a bytes"),
    (lambda: text(input_("a"), ""), "text() of ${input.a} alone would be the value itself"),
    (lambda: input_(-1), "index -1 in a reference must be between 0 and 999999999"),
    (lambda: input_(INDEX_MAX + 1), "index 1000000000 in a reference must be"),
    (lambda: input_(True), "a reference goes by names and indexes, not by True"),
    # References lead to what has surely run.
    (add(input=FLIGHT.output()), "step 'new': input refers to ${steps.flight.output}, a step of another definition"),
    (lambda: Definition("x").to_proto(), "definition x has no steps; add one with step(...)"),
    (lambda: Definition("x").to_yaml(), "definition x has no steps"),
]


@pytest.mark.parametrize(("build", "complaint"), WRONG)
def test_what_is_wrong_is_refused_where_it_stands(build: Callable[[], object], complaint: str) -> None:
    """Step, field, value, and what to write instead."""
    with pytest.raises(DefinitionError) as caught:
        build()

    assert complaint in str(caught.value)


def test_only_what_has_surely_run_can_be_referred_to() -> None:
    """A step's needs, and theirs; for the output everything has run."""
    definition = trip()
    flight, hotel, car = definition.steps

    with pytest.raises(
        DefinitionError, match=r"refers to \$\{steps\.car\.output\.id\}, which may not have run yet; add"
    ):
        definition.step("receipt", needs=[hotel], input={"car": car.output("id")})
    definition.step("receipt", needs=[hotel], input={"flight": flight.output("id"), "who": input_("who")})
    definition.output([car.output("id")])
    with pytest.raises(DefinitionError, match="definition trip: output was said before"):
        definition.output(1)


def test_refused_step_leaves_nothing_behind() -> None:
    definition = trip()
    before = definition.to_proto()

    with pytest.raises(DefinitionError):
        definition.step("new", input=float("nan"))

    assert definition.to_proto() == before
    assert definition.step("new").id == "new"


def test_set_of_kinds_has_one_order() -> None:
    """Equal definitions have equal bytes, whatever the hashes of strings are in this process."""
    assert list(Retry(non_retryable_kinds=frozenset("cab")).to_proto().non_retryable_kinds) == ["a", "b", "c"]  # type: ignore[arg-type]  # an iterable without order


@pytest.mark.parametrize(
    ("duration", "duration_ms"),
    [
        (1, 1_000),
        (0.1, 100),
        (0.001, 1),
        (1.005, 1_005),
        ("1h30m", 5_400_000),
        (timedelta(days=400), 400 * 86_400_000),
        (timedelta(milliseconds=1), 1),
    ],
)
def test_durations(duration: Any, duration_ms: int) -> None:
    assert Timeouts(queue=duration).to_proto().queue.ToMilliseconds() == duration_ms
