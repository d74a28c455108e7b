"""Python, files and the server have one idea of a definition: whatever is built is read from its file byte for byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.client import Definition, Retry, Timeouts, Undo, Verify, input_, literal, text
from stepward.client.definition import DefinedStep
from stepward.client.definition_file import loads
from stepward.client.definition_options import Effect, OnDeadline, OnUnknown, StartMode
from stepward.server.api.definitions import source
from stepward.server.core.canonical import definition_hash
from stepward.server.core.definition import compile_definition
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody
from stepward.v1 import definition_pb2

EXAMPLES_MAX = 150

names = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True)
# Everything that YAML has an opinion about, and everything else that UTF-8 has a form for.
texts = st.one_of(
    st.sampled_from(
        ["", "yes", "1.10", "null", "~", "2026-11-30", "<<", "- a", "a: b", "#", "%", "0x1F", " x ", "$", "a\nb"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=30),
)
durations = st.integers(1, 10_000_000_000).map(lambda ms: f"{ms}ms")
retries = st.builds(
    Retry,
    attempts_max=st.none() | st.integers(1, 10_000),
    initial=st.none() | st.integers(0, 1_000).map(lambda ms: f"{ms}ms"),
    factor=st.none() | st.floats(1, 100),
    cap=st.none() | st.integers(1_000, 10**9).map(lambda ms: f"{ms}ms"),
    non_retryable_kinds=st.lists(texts.filter(bool), max_size=2),
    time_max=st.none() | durations,
)
timeouts = st.builds(
    Timeouts,
    start_to_close=st.none() | durations,
    queue=st.none() | durations,
    heartbeat=st.none() | durations,
    schedule_to_close=st.none() | durations,
)
effects: st.SearchStrategy[Effect | None] = st.sampled_from([None, "idempotent", "non_idempotent"])
starts: st.SearchStrategy[StartMode | None] = st.sampled_from([None, "on_offer", "on_accept"])
on_unknowns: st.SearchStrategy[OnUnknown | None] = st.sampled_from([None, "escalate", "compensate"])
on_deadlines: st.SearchStrategy[OnDeadline | None] = st.sampled_from([None, "cancel", "compensate", "fail"])
undos = st.builds(
    Undo, names, queue=st.none() | names, retry=st.none() | retries, timeouts=st.none() | timeouts, effect=effects
)
verifies = st.builds(Verify, names, queue=st.none() | names, retry=st.none() | retries, timeouts=st.none() | timeouts)
keys = texts | st.integers(0, 99)


def values(before: list[DefinedStep]) -> st.SearchStrategy[Any]:
    """Inputs that may refer to what has run before."""
    inputs = st.builds(input_, keys) | st.builds(input_, keys, keys)
    outputs = st.sampled_from(before).flatmap(lambda step: st.builds(step.output, keys)) if before else inputs
    parts = st.lists(texts.map(literal) | inputs | outputs, max_size=4)
    leaves = st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
        *(texts.map(literal), inputs, outputs, parts.map(lambda some: text(literal("> "), *some))),
    )
    plain_keys = texts.filter(lambda key: "${" not in key)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_keys, inner, max_size=3), max_leaves=8
    )


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    """Any definition that can be built."""
    built = Definition(
        draw(names),
        description=draw(st.none() | texts),
        deadline=draw(st.none() | durations),
        on_deadline=draw(on_deadlines),
    )
    before: dict[str, list[DefinedStep]] = {}
    for step_id in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        needs = draw(st.lists(st.sampled_from(built.steps), unique=True, max_size=3)) if built.steps else []
        earlier = list(dict.fromkeys([*needs, *(step for need in needs for step in before[need.id])]))
        built.step(
            step_id,
            action=draw(st.none() | names),
            queue=draw(st.none() | names),
            needs=needs or None,
            input=draw(st.none() | values(earlier)),
            retry=draw(st.none() | retries),
            timeouts=draw(st.none() | timeouts),
            effect=draw(effects),
            start=draw(starts),
            undo=draw(st.none() | undos),
            verify=draw(st.none() | verifies),
            on_unknown=draw(on_unknowns),
        )
        before[step_id] = earlier
    if draw(st.booleans()):
        built.output(draw(values(list(built.steps))))
    return built


def compiled(message: definition_pb2.Definition) -> DefinitionBody:
    body = compile_definition(source(message), Limits(), message.SerializeToString(deterministic=True))
    assert isinstance(body, DefinitionBody), body
    return body


@settings(max_examples=EXAMPLES_MAX, deadline=None)
@given(definitions())
def test_what_is_built_is_read_from_its_file(built: Definition) -> None:
    """Equal bytes, so one version whichever way it came; and nothing that can be built breaks a rule of the server."""
    message = built.to_proto()
    from_file = loads(built.to_yaml())

    assert from_file.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    assert definition_hash(compiled(from_file)) == definition_hash(compiled(message))
