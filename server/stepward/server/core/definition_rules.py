"""The rules of definitions. All that are broken are told at once, each with its place, its value and what to do."""

from __future__ import annotations

import difflib
import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from stepward.server.core import definition_order, graph
from stepward.server.core.definition_source import either, retry_spec, timeouts_spec
from stepward.server.core.json_text import quoted
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import Approval, Effect, OnDeadline, OnExhausted, OnUnknown, Reassign, StartMode
from stepward.server.core.template import TemplateError, compile_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.core.definition_source import (
        DefinitionSource,
        RetrySource,
        StepSource,
        TimeoutsSource,
        UndoSource,
        VerifySource,
    )
    from stepward.server.core.limits import Limits

# Violations that one check tells. Whoever has more will check again, and similar names are costly to find.
VIOLATIONS_MAX: Final = 100
# Steps of a circle that a violation names.
CIRCLE_NAMED_MAX: Final = 20
# Ids that one check compares with unknown ones: some 25 us each, in which nobody else is heard.
COMPARISONS_MAX: Final = 10_000
# Characters of a value that a violation repeats.
VALUE_CHARS_MAX: Final = 64

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def check(source: DefinitionSource, limits: Limits, *, size_bytes: int) -> tuple[Violation, ...]:
    """All rules that a definition breaks, the first VIOLATIONS_MAX of them."""
    if size_bytes > limits.definition_bytes_max:
        return (Violation("", f"the definition has {size_bytes} bytes; at most {limits.definition_bytes_max}"),)
    rules = _Rules(source, limits)
    rules.name("name", source.name)
    rules.deadline()
    if 1 <= len(source.steps) <= limits.steps_max:
        rules.steps()
    else:
        rules.broken("steps", f"there are {len(source.steps)} steps; there must be 1 to {limits.steps_max}")
    return tuple(rules.violations)


class _Rules:
    """One check of one definition."""

    def __init__(self, source: DefinitionSource, limits: Limits) -> None:
        self.violations: list[Violation] = []
        self._source = source
        self._limits = limits
        self._comparisons_left = COMPARISONS_MAX
        # Of an id that stands twice the first step counts.
        self._positions = {step.id: at for at, step in reversed(tuple(enumerate(source.steps)))}

    def broken(self, field: str, description: str) -> None:
        """Tell one violation, unless enough are told."""
        if not self._enough:
            self.violations.append(Violation(field, description))

    @property
    def _enough(self) -> bool:
        return len(self.violations) >= VIOLATIONS_MAX

    def name(self, field: str, name: str) -> None:
        """Names are plain ASCII, so that two that look alike are alike."""
        chars_max = self._limits.name_chars_max
        if not name:
            self.broken(field, f"it is empty; it must have 1 to {chars_max} of A-Z a-z 0-9 . _ -")
        elif len(name) > chars_max:
            self.broken(field, f"{_value(name)} has {len(name)} characters; at most {chars_max}")
        elif odd := _NOT_IN_NAMES.search(name):
            character = f"{_value(odd[0])} (U+{ord(odd[0]):04X})"
            self.broken(field, f"{_value(name)} has {character} at {odd.start()}; only A-Z a-z 0-9 . _ - are allowed")

    def deadline(self) -> None:
        """When its jobs must have ended, and what follows."""
        self._within("deadline", either(self._source.deadline_ms, 1), 1, self._limits.duration_ms_max, " ms")
        self._enum("on_deadline", self._source.on_deadline, OnDeadline)

    def steps(self) -> None:
        """The steps one by one, then what holds between them."""
        for at, step in enumerate(self._source.steps):
            self._step(f"steps[{at}]", at, step)
        edges = sum(len(step.needs) for step in self._source.steps)
        if edges > self._limits.edges_max:
            self.broken(
                "steps",
                f"the steps have {edges} needs together; at most {self._limits.edges_max}: put one step between two "
                "layers, which needs all of the first, and which all of the second need",
            )
            return
        needs = [self._known_needs(at) for at in range(len(self._source.steps))]
        circles = 0
        for circle in graph.circles(needs):
            circles += 1
            self._circle(circle)
            if self._enough:
                return
        # Who comes before whom means nothing in a circle.
        before = None if circles else graph.ancestors(needs)
        if before is not None:
            for violation in definition_order.broken(self._source, before):
                self.broken(violation.field, violation.description)
        for at, step in enumerate(self._source.steps):
            self._template(f"steps[{at}].input", step.input, at, before)
        self._template("output", self._source.output, None, before)

    def _step(self, field: str, at: int, step: StepSource) -> None:
        self.name(f"{field}.id", step.id)
        if step.id and (first := self._positions[step.id]) != at:
            self.broken(f"{field}.id", f"{_value(step.id)} is the id of steps[{first}] too; ids must differ")
        for optional, name in (("action", step.action), ("queue", step.queue)):
            if name:
                self.name(f"{field}.{optional}", name)
        self._needs(f"{field}.needs", at, step)
        self._retry(f"{field}.retry", step.retry)
        self._timeouts(field, step.timeouts, step.retry)
        self._enum(f"{field}.effect", step.effect, Effect)
        self._enum(f"{field}.start", step.start, StartMode)
        self._enum(f"{field}.on_unknown", step.on_unknown, OnUnknown)
        self._enum(f"{field}.on_exhausted", step.on_exhausted, OnExhausted)
        self._enum(f"{field}.reassign", step.reassign, Reassign)
        self._enum(f"{field}.approval", step.approval, Approval)
        if step.undo is not None:
            self._undo(f"{field}.undo", step.undo)
        if step.verify is not None:
            self._verify(f"{field}.verify", step.verify)

    def _undo(self, field: str, undo: UndoSource) -> None:
        self.name(f"{field}.action", undo.action)
        if undo.queue:
            self.name(f"{field}.queue", undo.queue)
        self._retry(f"{field}.retry", undo.retry)
        self._timeouts(field, undo.timeouts, undo.retry)
        self._enum(f"{field}.effect", undo.effect, Effect)

    def _verify(self, field: str, verify: VerifySource) -> None:
        self.name(f"{field}.action", verify.action)
        if verify.queue:
            self.name(f"{field}.queue", verify.queue)
        self._retry(f"{field}.retry", verify.retry)
        self._timeouts(field, verify.timeouts, verify.retry)

    def _needs(self, field: str, at: int, step: StepSource) -> None:
        if len(step.needs) > self._limits.needs_max:
            self.broken(field, f"there are {len(step.needs)} needs; at most {self._limits.needs_max}")
            return
        first: dict[str, int] = {}
        for index, need in enumerate(step.needs):
            place = f"{field}[{index}]"
            if need in first:
                self.broken(place, f"{_value(need)} is {field}[{first[need]}] too; name each step once")
            elif need not in self._positions:
                self.broken(place, f"{_value(need)} is not the id of a step{self._meant(need)}")
            elif need == step.id:
                self.broken(place, f"{_value(need)} is the step itself, which would wait for ever: {need} -> {need}")
            first.setdefault(need, index)

    def _meant(self, name: str) -> str:
        """The id that was probably meant, as the end of a sentence."""
        if self._enough or self._comparisons_left < len(self._positions):
            return ""
        self._comparisons_left -= len(self._positions)
        similar = difflib.get_close_matches(name[: self._limits.name_chars_max], self._positions, n=1)
        return f"; did you mean {_value(similar[0])}?" if similar else ""

    def _known_needs(self, at: int) -> list[int]:
        """The steps that a step needs, but for those that are told already: unknown ones and itself."""
        needs = self._source.steps[at].needs[: self._limits.needs_max]
        known = {self._positions[need]: None for need in needs if need in self._positions}
        known.pop(at, None)
        return list(known)

    def _circle(self, circle: Sequence[int]) -> None:
        ids = [self._source.steps[at].id for at in (*circle, circle[0])]
        if len(ids) > CIRCLE_NAMED_MAX:
            half = CIRCLE_NAMED_MAX // 2
            ids = [*ids[:half], f"... {len(ids) - 2 * half} more ...", *ids[-half:]]
        closing = self._source.steps[circle[-1]].needs.index(self._source.steps[circle[0]].id)
        place = f"steps[{circle[-1]}].needs[{closing}]"
        self.broken(place, f"each of these needs the next, so none can start: {' -> '.join(ids)}")

    def _retry(self, field: str, retry: RetrySource) -> None:
        filled = retry_spec(retry)
        self._within(f"{field}.attempts_max", filled.attempts_max, 1, self._limits.attempts_max, "")
        # The other way round a NaN would pass.
        if not 1 <= filled.factor <= self._limits.retry_factor_max:
            self.broken(
                f"{field}.factor", f"it is {filled.factor}; it must be between 1 and {self._limits.retry_factor_max}"
            )
        self._within(f"{field}.initial", filled.initial_ms, 0, self._limits.duration_ms_max, " ms")
        self._within(f"{field}.cap", filled.cap_ms, 0, self._limits.duration_ms_max, " ms")
        if filled.initial_ms > filled.cap_ms:
            default = " (the default)" if retry.cap_ms is None else ""
            own = " (the default)" if retry.initial_ms is None else ""
            self.broken(
                f"{field}.initial",
                f"it is {filled.initial_ms} ms{own}; it must be at most the cap, {filled.cap_ms} ms{default}",
            )
        self._within(f"{field}.time_max", either(retry.time_ms_max, 1), 1, self._limits.duration_ms_max, " ms")
        self._kinds(f"{field}.non_retryable_kinds", retry.non_retryable_kinds)

    def _kinds(self, field: str, kinds: Sequence[str]) -> None:
        if len(kinds) > self._limits.non_retryable_kinds_max:
            self.broken(field, f"there are {len(kinds)} kinds; at most {self._limits.non_retryable_kinds_max}")
            return
        chars_max = self._limits.failure_kind_chars_max
        for index, kind in enumerate(kinds):
            if not 1 <= len(kind) <= chars_max:
                self.broken(f"{field}[{index}]", f"{_value(kind)} has {len(kind)} characters; 1 to {chars_max}")

    def _timeouts(self, owner: str, timeouts: TimeoutsSource, retry: RetrySource) -> None:
        """The bounds one by one, then what no longer one may exceed: it would never be reached."""
        longest_ms, field = self._limits.duration_ms_max, f"{owner}.timeouts"
        self._within(f"{field}.start_to_close", either(timeouts.start_to_close_ms, 1), 1, longest_ms, " ms")
        self._within(f"{field}.queue", either(timeouts.queue_ms, 1), 1, longest_ms, " ms")
        self._within(f"{field}.heartbeat", either(timeouts.heartbeat_ms, 1), 1, longest_ms, " ms")
        self._within(f"{field}.schedule_to_close", either(timeouts.schedule_to_close_ms, 1), 1, longest_ms, " ms")
        filled = timeouts_spec(timeouts)
        default = " (the default)" if timeouts.start_to_close_ms is None else ""
        self._at_most(f"{field}.heartbeat", timeouts.heartbeat_ms, "start_to_close", filled.start_to_close_ms, default)
        over_all = timeouts.schedule_to_close_ms
        if over_all is not None:
            for name, value_ms in (("start_to_close", timeouts.start_to_close_ms), ("queue", timeouts.queue_ms)):
                self._at_most(f"{field}.{name}", value_ms, "schedule_to_close", over_all)
            self._at_most(f"{owner}.retry.time_max", retry.time_ms_max, "timeouts.schedule_to_close", over_all)

    def _at_most(self, field: str, value_ms: int | None, other: str, bound_ms: int, default: str = "") -> None:
        if value_ms is not None and bound_ms < value_ms <= self._limits.duration_ms_max:
            self.broken(field, f"it is {value_ms} ms; it must be at most {other}, {bound_ms} ms{default}")

    def _within(self, field: str, value: int, lowest: int, highest: int, unit: str) -> None:
        if not lowest <= value <= highest:
            self.broken(field, f"it is {value}{unit}; it must be between {lowest} and {highest}{unit}")

    def _enum(self, field: str, number: int, type_: type[IntEnum]) -> None:
        if number and number not in set(type_):
            known = ", ".join(f"{member.name} ({member.value})" for member in type_)
            self.broken(field, f"it is {number}, which is unknown here; it must be {known} or left out")

    def _template(self, field: str, text: str, at: int | None, before: list[int] | None) -> None:
        """The template of a step's input, or of the job's output when `at` is None."""
        try:
            template = compile_template(text.encode("utf-8", "surrogatepass"))
        except TemplateError as error:
            self.broken(field, error.message)
            return
        for reference in {each.source: each for each in reversed(template.references)}.values():
            step_id = reference.source.step_id
            if step_id and (fault := self._unreachable(step_id, at, before)):
                self.broken(field, f"{_value(reference.text)} {fault}")

    def _unreachable(self, step_id: str, at: int | None, before: list[int] | None) -> str:
        """Why what a step gave is not at hand where it is referred to, or nothing."""
        position = self._positions.get(step_id)
        if position is None:
            return f"refers to {_value(step_id)}, which is not the id of a step{self._meant(step_id)}"
        if at is None or before is None:
            return ""
        if position == at:
            return "refers to the step itself, which has not run yet"
        if before[position] >> at & 1:
            return f"refers to {_value(step_id)}, which runs after this step"
        if not before[at] >> position & 1:
            return f"refers to {_value(step_id)}, which may not have run yet; add {_value(step_id)} to needs"
        return ""


def _value(text: str) -> str:
    """A value in quotes, cut where it is long."""
    return quoted(text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "...")
