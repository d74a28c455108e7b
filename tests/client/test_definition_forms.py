"""Python, files and the server have one idea of a definition: whatever is built is read from its file byte for byte."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.client import Definition, Retry, Timeouts, Undo, Verify, input_, literal, text
from stepward.client import definition_options as options
from stepward.client.definition import DefinedStep
from stepward.client.definition_file import loads
from stepward.client.definition_options import (
    Approval,
    Effect,
    OnDeadline,
    OnExhausted,
    OnUnknown,
    Reassign,
    StartMode,
    UndoEffect,
)
from stepward.server.api.definitions import source
from stepward.server.core.canonical import definition_hash
from stepward.server.core.definition import compile_definition
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import DefinitionBody
from stepward.v1 import definition_pb2

EXAMPLES_MAX = 40
EXAMPLES_MANY = 150

names = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True)
# Everything that YAML has an opinion about, and everything else that UTF-8 has a form for.
texts = st.one_of(
    st.sampled_from(
        ["", "yes", "1.10", "null", "~", "2026-11-30", "<<", "- a", "a: b", "#", "%", "0x1F", " x ", "$", "a\nb"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=30),
)
durations_ms = st.integers(1, 10_000_000_000)
durations = durations_ms.map(lambda ms: f"{ms}ms")
retries = st.builds(
    Retry,
    attempts_max=st.none() | st.integers(1, 10_000),
    initial=st.none() | st.integers(0, 1_000).map(lambda ms: f"{ms}ms"),
    factor=st.none() | st.floats(1, 100),
    cap=st.none() | st.integers(1_000, 10**9).map(lambda ms: f"{ms}ms"),
    non_retryable_kinds=st.lists(texts.filter(bool), max_size=2),
    time_max=st.none() | durations,
)
timeouts = st.lists(durations_ms, min_size=4, max_size=4).flatmap(
    lambda ms: st.builds(
        Timeouts,
        heartbeat=st.none() | st.just(f"{min(ms)}ms"),
        start_to_close=st.none() | st.just(f"{sorted(ms)[1]}ms"),
        queue=st.none() | st.just(f"{sorted(ms)[2]}ms"),
        schedule_to_close=st.none() | st.just(f"{max(ms)}ms"),
    )
)
effects: st.SearchStrategy[Effect | None] = st.sampled_from([None, *get_args(options.Effect)])
undo_effects: st.SearchStrategy[UndoEffect | None] = st.sampled_from([None, "idempotent", "non_idempotent"])
on_exhausteds: st.SearchStrategy[OnExhausted | None] = st.sampled_from([None, *get_args(options.OnExhausted)])
reassigns: st.SearchStrategy[Reassign | None] = st.sampled_from([None, *get_args(options.Reassign)])
approvals: st.SearchStrategy[Approval | None] = st.sampled_from([None, *get_args(options.Approval)])
starts: st.SearchStrategy[StartMode | None] = st.sampled_from([None, "on_offer", "on_accept"])
on_unknowns: st.SearchStrategy[OnUnknown | None] = st.sampled_from([None, "escalate", "compensate"])
on_deadlines: st.SearchStrategy[OnDeadline | None] = st.sampled_from([None, "cancel", "compensate", "fail"])
undos = st.builds(
    Undo, names, queue=st.none() | names, retry=st.none() | retries, timeouts=st.none() | timeouts, effect=undo_effects
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
            on_exhausted=draw(on_exhausteds),
            reassign=draw(reassigns),
            approval=draw(approvals),
        )
        before[step_id] = earlier
    if draw(st.booleans()):
        built.output(draw(values(list(built.steps))))
    return built


def judged(message: definition_pb2.Definition) -> bytes | tuple[Violation, ...]:
    """The server's hash, or what it refuses: what one field means beside another is for the server to say."""
    body = compile_definition(source(message), Limits(), message.SerializeToString(deterministic=True))
    return definition_hash(body) if isinstance(body, DefinitionBody) else body


@pytest.mark.slow
def test_the_most_steps_are_built_written_and_read() -> None:
    """As many as a server takes: none of the three may cost more than its share for each step."""
    steps_max = Limits().steps_max
    built = Definition("long")
    before: DefinedStep | None = None
    for number in range(steps_max // 2):
        before = built.step(
            f"chain-{number}", needs=[before] if before else None, input={"a": before.output("x")} if before else None
        )
    for number in range(steps_max // 2 - 1):
        built.step(f"branch-{number}", needs=[f"chain-{number}"])
    built.step("join", needs=built.sinks())
    defaults = "defaults: {queue: x, retry: {attempts_max: 3, initial: 1s}}\nsteps:"

    read = loads(built.to_yaml().replace("steps:", defaults, 1))

    assert len(read.steps) == steps_max
    assert {(step.queue, step.retry.attempts_max) for step in read.steps} == {("x", 3)}
    assert list(read.steps[-1].needs) == list(built.to_proto().steps[-1].needs)


@settings(max_examples=EXAMPLES_MAX, deadline=None)
@given(definitions())
def test_what_is_built_is_read_from_its_file(built: Definition) -> None:
    """Equal bytes, so one version whichever way it came."""
    require_one(built)


@pytest.mark.slow
@settings(max_examples=EXAMPLES_MANY, deadline=None)
@given(definitions())
def test_many_that_are_built_are_read_from_their_files(built: Definition) -> None:
    """The same, for more of them."""
    require_one(built)


def require_one(built: Definition) -> None:
    """The definition and its file are one."""
    message = built.to_proto()
    from_file = loads(built.to_yaml())

    assert from_file.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    assert judged(from_file) == judged(message)
