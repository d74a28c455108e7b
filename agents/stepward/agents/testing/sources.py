"""What a bench is made from: a definition in any of its forms, and the agents that serve it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stepward.agents import definitions, outcomes
from stepward.agents.agent import SLOTS_MAX, Agent
from stepward.agents.errors import DefinitionRefused
from stepward.agents.testing.errors import BenchError
from stepward.v1 import definition_pb2

if TYPE_CHECKING:
    from stepward.client.definition_forms import AnyDefinition


class Wanted(NamedTuple):
    """An action that a definition names, and the queue on which it is offered."""

    action: str
    queue: str


def read_definition(given: AnyDefinition | Mapping[str, Any]) -> definition_pb2.Definition:
    """The definition, from whatever it is given as. A text of one line is a path, one of more lines is YAML.

    Raises:
        DefinitionRefused: It cannot be read; the message begins with where.
    """
    if isinstance(given, Mapping):
        return _text(json.dumps(given, indent=1), "<dict>")
    if isinstance(given, str) and "\n" in given:
        return _text(given, "<text>")
    return definitions.read(given)


def _text(text: str, name: str) -> definition_pb2.Definition:
    from stepward.client.definition_file import loads  # noqa: PLC0415 - not everybody needs it
    from stepward.client.errors import DefinitionFileError  # noqa: PLC0415 - not everybody needs it

    try:
        return loads(text, name)
    except DefinitionFileError as error:
        raise DefinitionRefused(str(error)) from None


def wanted_by(message: definition_pb2.Definition) -> list[Wanted]:
    """Every action of a definition, with its undos and questions, each once."""
    found: list[Wanted] = []
    for step in message.steps:
        queue = step.queue or "default"
        found.append(Wanted(step.action or step.id, queue))
        if step.HasField("undo"):
            found.append(Wanted(step.undo.action, step.undo.queue or queue))
        if step.HasField("verify"):
            found.append(Wanted(step.verify.action, step.verify.queue or queue))
    return list(dict.fromkeys(found))


def agents_for(
    given: Agent | Sequence[Agent] | Mapping[str, Callable[..., Any]], wanted: Collection[Wanted]
) -> tuple[Agent, ...]:
    """The agents, or one for each queue that is made from functions.

    Raises:
        BenchError: There are none, or they work for different namespaces.
    """
    if isinstance(given, Mapping):
        agents = tuple(_agent_of(given, queue) for queue in dict.fromkeys(one.queue for one in wanted))
    else:
        agents = (given,) if isinstance(given, Agent) else tuple(given)
    namespaces = sorted({agent.namespace for agent in agents})
    if len(namespaces) != 1:
        raise BenchError(f"the agents of a bench must work for one namespace; these work for {namespaces}")
    return agents


def _agent_of(functions: Mapping[str, Callable[..., Any]], queue: str) -> Agent:
    agent = Agent(queue=queue, slots=SLOTS_MAX)
    for action, function in functions.items():
        agent.action(action)(function)
    return agent


def require_served(wanted: Collection[Wanted], agents: Sequence[Agent], unserved: Collection[str]) -> None:
    """Refuse a bench on which a step would wait for an agent that there is not.

    Raises:
        BenchError: An action has no handler on its queue.
    """
    for action, queue in wanted:
        there = sorted({name for agent in agents if agent.queue == queue for name in agent.actions})
        if action not in there and action not in unserved:
            said = f"has {', '.join(there)}" if there else "has no agent"
            raise BenchError(
                f"no handler for action {action!r} on queue {queue!r}, which {said}: give the bench one, or name the "
                "action in `unserved`"
            )


def encode(value: Any) -> tuple[bytes, str]:
    """What somebody passes as input or output, and its encoding: bytes are opaque, None is nothing at all.

    Raises:
        BenchError: It has no JSON form.
    """
    match value:
        case None:
            return b"", ""
        case bytes():
            return value, outcomes.BYTES
    try:
        return msgspec.json.encode(value), outcomes.JSON
    except TypeError as error:
        raise BenchError(f"{type(value).__name__} has no JSON form ({error}): pass plain values or bytes") from None


def decode(data: bytes, encoding: str) -> Any:
    """The value of a payload: of JSON what it stands for, else its bytes."""
    if encoding not in ("", outcomes.JSON):
        return data
    return msgspec.json.decode(data) if data else None
