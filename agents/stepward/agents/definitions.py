"""Brings an agent's own definitions to the cluster before the agent takes work."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import grpc

from stepward.agents.connection import Dial, read_ending
from stepward.agents.errors import DefinitionRefused
from stepward.agents.route import Route
from stepward.v1 import definition_pb2, definition_service_pb2
from stepward.v1.definition_service_pb2_grpc import DefinitionServiceStub

if TYPE_CHECKING:
    from stepward.client.definition_forms import AnyDefinition

APPLY_S_MAX: Final = 10.0
# The same while there are other nodes: a dead host does not say that it is one.
APPLY_S_MAX_OF_SEVERAL: Final = 3.0

# What no repetition changes.
_FINAL_REASONS: Final = frozenset({"INVALID_DEFINITION", "INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE"})

_log = logging.getLogger("stepward.agents.definitions")


def read(definition: AnyDefinition) -> definition_pb2.Definition:
    """The contract's message of a definition that an agent brings.

    Raises:
        DefinitionRefused: A file cannot be read, and the message says what is wrong by path, line and column; or what
            was built in Python has no steps.
    """
    if isinstance(definition, definition_pb2.Definition):
        return definition
    # Only who brings files or builds needs the client, which reads the same from the command line.
    from stepward.client.definition_forms import definition_message  # noqa: PLC0415 - not everybody needs it
    from stepward.client.errors import DefinitionError, DefinitionFileError  # noqa: PLC0415 - not everybody needs it

    try:
        return definition_message(definition)
    except (DefinitionError, DefinitionFileError) as error:
        raise DefinitionRefused(str(error)) from None


async def apply(
    definitions: Sequence[definition_pb2.Definition],
    *,
    namespace: str,
    route: Route,
    dial: Dial,
    pause: Callable[[int], Awaitable[None]],
) -> None:
    """Store the definitions, each as a new version unless the newest is equal. Tries until a node takes them.

    Raises:
        DefinitionRefused: One of them breaks rules.
    """
    for definition in definitions:
        request = definition_service_pb2.ApplyDefinitionRequest(namespace=namespace, definition=definition)
        while not await _apply_once(route, dial, request):
            await pause(route.failed_wait_ms())
    route.welcomed()


async def _apply_once(route: Route, dial: Dial, request: definition_service_pb2.ApplyDefinitionRequest) -> bool:
    """Whether the next node has taken it."""
    name, address = request.definition.name, route.next_address()
    timeout_s = APPLY_S_MAX if route.alone else APPLY_S_MAX_OF_SEVERAL
    async with dial(address) as channel:
        try:
            answer = await DefinitionServiceStub(channel).ApplyDefinition(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failed:
            ending = read_ending(failed)
            if ending.reason in _FINAL_REASONS:
                text = f"the cluster refuses definition {name!r}: {ending.message}"
                raise DefinitionRefused(text, ending.violations) from None
            level = logging.DEBUG if route.failures else logging.WARNING
            _log.log(level, "definition_not_applied name=%s address=%s why=%s", name, address, ending.message)
            return False
    _log.info("definition_applied name=%s version=%s created=%s", name, answer.version.version, answer.created)
    return True
