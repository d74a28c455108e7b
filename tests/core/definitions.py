"""Definitions for tests, in few words."""

from typing import Any

from stepward.server.core.definition import compile_definition
from stepward.server.core.definition_source import DefinitionSource, StepSource
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import DefinitionBody

LIMITS = Limits()


def trip(*steps: StepSource, output: str = "") -> DefinitionSource:
    """A definition of that name."""
    return DefinitionSource("trip", steps, output)


def step(id: str, *needs: str, **fields: Any) -> StepSource:
    """A step that needs others."""
    return StepSource(id, needs=needs, **fields)


def violations(source: DefinitionSource, limits: Limits = LIMITS) -> list[Violation]:
    """The rules that a definition breaks; it must break some."""
    outcome = compile_definition(source, limits, b"source")
    assert not isinstance(outcome, DefinitionBody)
    return list(outcome)


def compiled(source: DefinitionSource) -> DefinitionBody:
    """What a job of a good definition runs."""
    outcome = compile_definition(source, LIMITS, b"source")
    assert isinstance(outcome, DefinitionBody), outcome
    return outcome
