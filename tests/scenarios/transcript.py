"""Plays transcripts against the core: the commands of a block are one batch, and its result is what came of them.

Commands, each with `at=MS` to set all clocks first:

    limits session_ttl_ms=3000 ...             bounds of the rules, before everything else
    define NAME [output=JSON] [deadline=] [on_deadline=]
                                               a definition; one indented line a step:
      STEP [needs=A,B] [action=] [queue=] [input=JSON] [undo=ACTION] [undo_effect=]
           [verify=ACTION] [verify_queue=] [effect=] [start=] [on_unknown=]
           [on_exhausted=] [reassign=] [approval=]
           [attempts= initial= factor= cap= kinds=A,B time_max=]
           [start_to_close=] [queue_timeout=] [heartbeat=] [schedule_to_close=]
    submit JOB definition=NAME [version=] [input=JSON] [key=] [caller=] [namespace=] [deadline=]
    session open AGENT actions=A,B|* [slots=] [queue=] [namespace=] [calls=GENERATION]
    session renew AGENT [generation=] [holding=all|none|JOB/STEP/TOKEN,...] [by=stream|call]
    session close|drain AGENT [generation=]
    report step=STEP outcome=OUTCOME [job=] [token=] [agent=] [output=JSON] [kind=] [message=] [retry_after=]
        outcomes: accepted started success failure fatal unknown refused handed_back stopped drained progress alive
    cancel [job=] [reason=] [actor=]
    terminate [job=] reason= [actor=]
    pause|resume [job=] [reason=] [actor=]
    retry step=STEP [job=] [reason=] [actor=]
    skip step=STEP [job=] [output=JSON] [undone=yes] [reason=] [actor=]
    sweep [subjects=]
    advance until=MS [alive=A,B] [every=MS]    time as it passes in a node: heartbeats of those alive, then a sweep
    show job|history [job=]
    show step|offer STEP [job=]
    show slots AGENT
    show brake|breakers

`calls=` and `by=call` are for agents without streaming; the first says which generation they know.
What a report leaves out is that of the step's newest assignment; a job that is left out is the last one submitted.
Random waits are always the longest, so that results can be read.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec import structs

from stepward.server.core import keys, rows
from stepward.server.core.commands import Sweep
from stepward.server.core.limits import Limits
from tests.core.world import World
from tests.scenarios import blocks, orders, results, shows
from tests.scenarios.blocks import TranscriptError

if TYPE_CHECKING:
    from stepward.server.core.commands import AnyCommand
    from tests.scenarios.blocks import Line

# Heartbeats and sweeps that one `advance` may take.
ADVANCES_MAX = 100_000


class LongestWait(random.Random):
    """Chance that always draws the longest wait."""

    def randint(self, a: int, b: int) -> int:  # type: ignore[explicit-override]  # Python has @override from 3.12 on
        """The upper bound."""
        del a
        return b


class Transcript:
    """One shard, and the commands that wait for the end of their block."""

    def __init__(self) -> None:
        self.world = World()
        self.world.rng = LongestWait()
        self.job_id = ""
        self.waiting: list[AnyCommand] = []
        self._said: list[str] = []

    def block(self, lines: list[Line]) -> list[str]:
        """What came of the commands of a block."""
        self._said = []
        for line in lines:
            self._line(line)
        self._decide()
        return self._said

    def _line(self, line: Line) -> None:
        if "at" in line.fields:
            self._set_clock(line)
        verb = line.word()
        match verb:
            case "limits":
                self._limits(line)
            case "advance":
                self._decide()
                self._advance(line)
            case "show":
                self._decide()
                self._said += shows.show(self, line)
            case "define":
                outcome = orders.define(line, self.world.limits)
                if isinstance(outcome, tuple):
                    self._said += [f"refused {broken.field}: {broken.description}" for broken in outcome]
                else:
                    self.waiting.append(outcome)
            case _:
                self.waiting.append(orders.order(self, verb, line))
        line.done()

    def _set_clock(self, line: Line) -> None:
        at_ms = line.number("at")
        if at_ms < self.world.now_ms or (self.waiting and at_ms != self.world.now_ms):
            msg = f"time goes forward, and a block is one batch with one time: {line.text}"
            raise TranscriptError(msg)
        self.world.now_ms = at_ms

    def _limits(self, line: Line) -> None:
        if self.world.sequence:
            msg = f"limits come before everything else: {line.text}"
            raise TranscriptError(msg)
        known = structs.asdict(Limits())
        bounds = {name: type(known[name])(value) for name, value in line.fields.items() if name in known}
        self.world.limits = structs.replace(self.world.limits, **bounds)
        line.fields = {name: value for name, value in line.fields.items() if name not in known}

    def _decide(self) -> None:
        if not self.waiting:
            return
        before = results.Before(self.world.reader)
        answers = self.world.do(*self.waiting)
        for command, answer in zip(self.waiting, answers, strict=True):
            self._said += results.answered(command, answer)
        self._said += results.changed(before, self.world.reader, self.world.changes)
        self.waiting = []

    def _advance(self, line: Line) -> None:
        """Let time pass. What nothing comes of is not told."""
        until_ms, alive = line.number("until"), line.names("alive")
        every_ms = line.number("every", self.world.limits.session_ttl_ms // 6)
        assert (until_ms - self.world.now_ms) / every_ms <= ADVANCES_MAX, line.text
        while self.world.now_ms < until_ms:
            self.world.now_ms = min(until_ms, self.world.now_ms + every_ms)
            commands: list[AnyCommand] = [orders.heartbeat(self, agent) for agent in alive]
            for command in (*commands, Sweep(self.world.limits.sweep_subjects_max)):
                before = results.Before(self.world.reader)
                answer = self.world.one(command)
                told = results.refused(answer) + results.changed(before, self.world.reader, self.world.changes)
                self._said += [f"at {self.world.now_ms}: {each}" for each in told]

    def job(self, line: Line) -> str:
        """The job that a command names, or the last one submitted."""
        return line.take("job", self.job_id)

    def step_id(self, job_id: str, ordinal: int) -> str:
        """A step's id, by its position."""
        return results.step_id(self.world.reader, job_id, ordinal)

    def step(self, job_id: str, step_id: str) -> rows.Step:
        """A step's row, when it has one."""
        if self.world.reader.get(keys.job(job_id)) is None:
            return rows.Step(rows.StepState.PENDING, 0)
        return self.world.step(job_id, step_id) or rows.Step(rows.StepState.PENDING, 0)


def play(text: str) -> str:
    """A transcript with the results that the rules give now."""
    transcript = Transcript()
    played = [
        blocks.Block(block.head, transcript.block(block.commands())) if block.commands() else block
        for block in blocks.read(text)
    ]
    return blocks.write(played)
