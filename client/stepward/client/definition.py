"""Definitions as Python: what a job is made of, step by step.

    trip = Definition("trip", deadline="2h")
    flight = trip.step("book-flight", queue="trip", input={"to": input_("to")}, undo="cancel-flight")
    hotel = trip.step("book-hotel", needs=[flight], input={"flight": flight.output("id")}, undo="cancel-hotel")
    trip.step("send-receipt", needs=trip.sinks(), effect="non_idempotent")
    trip.output({"flight": flight.output("id"), "hotel": hotel.output("id")})

    client.apply_definition(trip)

It is the same thing as a file with the same content: `to_proto` gives the same bytes and `to_yaml` such a file. What is
wrong is refused by the call in which it stands. A step can only need steps that are there already, so there are no
circles; what else a definition means is checked by the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepward.client.definition_options import (
    Approval,
    Duration,
    Effect,
    OnDeadline,
    OnExhausted,
    OnUnknown,
    Reassign,
    Retry,
    StartMode,
    Timeouts,
    Undo,
    Verify,
    checked_name,
    set_duration,
    set_options,
    set_word,
)
from stepward.client.definition_text import as_yaml
from stepward.client.errors import DefinitionError
from stepward.client.references import Key, Reference, Value, references, template
from stepward.client.yaml_nodes import suggestion
from stepward.v1 import definition_pb2


@dataclass(frozen=True, slots=True, eq=False)
class DefinedStep:
    """A step of a definition, for other steps to need and to refer to."""

    id: str
    definition: Definition = field(repr=False)

    def output(self, *path: Key) -> Reference:
        """What the step gives, or what lies in it: `flight.output("seats", 0)`.

        Raises:
            DefinitionError: The path has something else than names and indexes.
        """
        return Reference(self.id, path, self.definition)


class Definition:
    """A named description of a job: a DAG of steps."""

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        deadline: Duration | None = None,
        on_deadline: OnDeadline | None = None,
    ) -> None:
        """Begin a definition; `step` adds to it.

        Args:
            name: Unique in its namespace: 1 to 128 of A-Z a-z 0-9 . _ -
            description: A sentence for a person.
            deadline: From the submission to the end of a job.
            on_deadline: What becomes of a job whose deadline has passed.

        Raises:
            DefinitionError: One of them is wrong.
        """
        self._message = definition_pb2.Definition(name=checked_name(name, "name"))
        self._steps: dict[str, DefinedStep] = {}
        self._positions: dict[str, int] = {}
        self._before: list[int] = []
        """By position: a bit for each step that surely comes before; sets of ids would be too large for wide ones."""
        place = f"definition {name}"
        if description is not None:
            self._message.description = description
        set_duration(self._message.deadline, deadline, f"{place}: deadline", at_least_ms=1)
        set_word(self._message, "on_deadline", on_deadline, f"{place}: on_deadline")

    @property
    def name(self) -> str:
        return self._message.name

    @property
    def steps(self) -> tuple[DefinedStep, ...]:
        """The steps so far."""
        return tuple(self._steps.values())

    def sinks(self) -> list[DefinedStep]:
        """The steps that no other step needs so far: what a step must need to come after everything.

        Ask for them where the step is added: `needs=definition.sinks()`.
        """
        needed = {need for step in self._message.steps for need in step.needs}
        return [step for step in self._steps.values() if step.id not in needed]

    def step(
        self,
        id: str,
        *,
        action: str | None = None,
        queue: str | None = None,
        needs: Iterable[DefinedStep | str] | None = None,
        input: Value = None,
        retry: Retry | None = None,
        timeouts: Timeouts | None = None,
        effect: Effect | None = None,
        start: StartMode | None = None,
        undo: Undo | str | None = None,
        verify: Verify | str | None = None,
        on_unknown: OnUnknown | None = None,
        on_exhausted: OnExhausted | None = None,
        reassign: Reassign | None = None,
        approval: Approval | None = None,
    ) -> DefinedStep:
        """Add a step.

        Args:
            id: Unique in the definition: 1 to 128 of A-Z a-z 0-9 . _ -
            action: What handler runs it. Left out: the step's id.
            queue: Which agents may take it. Left out: "default".
            needs: The steps that must have succeeded first, or their ids. Left out: it is a root and starts at once. An
                empty list is refused: it is what a fan-in becomes by mistake, and would start before its branches.
            input: The input of the action: plain values with references in them. Left out: the job's whole input.
            retry: How failed attempts are repeated.
            timeouts: How long things may take.
            effect: Whether the action may be repeated without harm.
            start: When a handler starts.
            undo: How it is compensated, or just the action that does it. Left out: what it did remains done.
            verify: How the service is asked after an unknown outcome, or just the action that asks.
            on_unknown: What follows when nobody can tell whether it happened and it may not be repeated.
            on_exhausted: What follows when no further attempt is made and it is known not to have succeeded.
            reassign: Who may be given the next attempt.
            approval: Whether a person must agree before the job is undone, goes on without it or is ended.

        Returns:
            The step, for others to need and to refer to.

        Raises:
            DefinitionError: Something is wrong; nothing was added.
        """
        place = f"step {id!r}"
        step = definition_pb2.Step(id=checked_name(id, f"{place}: id"))
        if id in self._steps:
            raise DefinitionError(f"{place}: {self.name} has a step of this id already")
        if action is not None:
            step.action = checked_name(action, f"{place}: action")
        if queue is not None:
            step.queue = checked_name(queue, f"{place}: queue")
        step.needs.extend(self._needs(needs, place))
        before = self._before_all(step.needs)
        if input is not None:
            step.input = self._template(input, f"{place}: input", before)
        set_options(step, retry, timeouts, place)
        words = {"effect": effect, "start": start, "on_unknown": on_unknown, "on_exhausted": on_exhausted}
        for name, word in {**words, "reassign": reassign, "approval": approval}.items():
            set_word(step, name, word, f"{place}: {name}")
        if undo is not None:
            step.undo.CopyFrom(_undo(undo, place).to_proto())
        if verify is not None:
            step.verify.CopyFrom(_verify(verify, place).to_proto())
        self._message.steps.append(step)
        self._positions[id] = len(self._before)
        self._before.append(before)
        self._steps[id] = DefinedStep(id, self)
        return self._steps[id]

    def output(self, value: Value) -> None:
        """Say what the job gives: plain values with references in them.

        Without it a job gives the output of the only step that nothing needs, or, when there are several, an object of
        their outputs by step id.

        Raises:
            DefinitionError: The value has no such form, or the output was said before.
        """
        if self._message.output:
            raise DefinitionError(f"definition {self.name}: output was said before: {self._message.output}")
        self._message.output = self._template(value, f"definition {self.name}: output", (1 << len(self._before)) - 1)

    def to_proto(self) -> definition_pb2.Definition:
        """The contract's message, a copy.

        Raises:
            DefinitionError: There is no step yet.
        """
        if not self._steps:
            raise DefinitionError(f"definition {self.name} has no steps; add one with step(...)")
        message = definition_pb2.Definition()
        message.CopyFrom(self._message)
        return message

    def to_yaml(self) -> str:
        """A definition file that gives the same definition when it is read.

        Raises:
            DefinitionError: There is no step yet.
        """
        return as_yaml(self.to_proto())

    def _before_all(self, needs: Iterable[str]) -> int:
        """The positions of some steps and of all that they need, as bits."""
        before = 0
        for need in needs:
            before |= self._before[self._positions[need]] | 1 << self._positions[need]
        return before

    def _needs(self, needs: Iterable[DefinedStep | str] | None, place: str) -> list[str]:
        if needs is None:
            return []
        if isinstance(needs, str | DefinedStep):
            raise DefinitionError(f"{place}: needs is {needs!r}; write a list of steps")
        ids: dict[str, None] = {}
        for need in needs:
            need_id = self._need(need, place)
            if need_id in ids:
                raise DefinitionError(f"{place}: needs has {need_id!r} twice")
            ids[need_id] = None
        if not ids:
            raise DefinitionError(
                f"{place}: needs is empty, so it would start before everything that it was to wait for; leave needs "
                "out for a step that starts at once"
            )
        return list(ids)

    def _need(self, need: object, place: str) -> str:
        match need:
            case DefinedStep(definition=definition) if definition is not self:
                raise DefinitionError(f"{place}: needs has {need!r}, which is of another definition")
            case DefinedStep(id=id):
                return id
            case str() if need in self._steps:
                return need
            case str():
                known = suggestion(need, list(self._steps)) if self._steps else "; there are none yet"
                raise DefinitionError(f"{place}: needs has {need!r}, which is no step so far{known}")
            case _:
                raise DefinitionError(f"{place}: needs has {need!r}; write a step or its id")

    def _template(self, value: object, place: str, before: int) -> str:
        written = template(value, place)
        for reference in references(value):
            if not reference.step_id:
                continue
            if reference.owner is not self:
                raise DefinitionError(f"{place} refers to {reference}, a step of another definition")
            if not before >> self._positions[reference.step_id] & 1:
                raise DefinitionError(
                    f"{place} refers to {reference}, which may not have run yet; add {reference.step_id!r} to needs"
                )
        return written


def _undo(undo: object, place: str) -> Undo:
    match undo:
        case Undo():
            return undo
        case str():
            return Undo(checked_name(undo, f"{place}: undo"))
        case _:
            raise DefinitionError(f"{place}: undo is {undo!r}; write Undo(...) or the name of an action")


def _verify(verify: object, place: str) -> Verify:
    match verify:
        case Verify():
            return verify
        case str():
            return Verify(checked_name(verify, f"{place}: verify"))
        case _:
            raise DefinitionError(f"{place}: verify is {verify!r}; write Verify(...) or the name of an action")
