"""How a job looks to a person: one line for the job, one for each step.

`render_tree` is a pure function of the job, the time and what is known about agents. `plain` and `rich_text` turn its
lines into what a pipe or a terminal shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepward.client.vacancies import why_it_waits
from stepward.client.values import Agent, Job, JobState, Step, StepState

if TYPE_CHECKING:
    from rich.text import Text

# A terminal's height, about. What does not fit is counted instead.
STEPS_SHOWN_MAX = 40
# Where nothing is drawn anew, more can be read.
STEPS_LISTED_MAX = 500

REMAINDERS_SHOWN_MAX = 20

JOB_STYLES: Mapping[JobState, str] = {
    JobState.RUNNING: "cyan",
    JobState.PAUSED: "yellow",
    JobState.COMPENSATING: "yellow",
    JobState.ESCALATED: "bold red",
    JobState.COMPLETED: "green",
    JobState.COMPENSATED: "magenta",
    JobState.CANCELLED: "magenta",
    JobState.FAILED: "red",
}

# Symbol and style of a step's state.
MARKS: Mapping[StepState, tuple[str, str]] = {
    StepState.UNSPECIFIED: ("?", "red"),
    StepState.PENDING: ("○", "dim"),
    StepState.READY: ("◌", "cyan"),
    StepState.OFFERED: ("◔", "cyan"),
    StepState.RUNNING: ("▶", "cyan"),
    StepState.RETRY_WAIT: ("↻", "yellow"),
    StepState.OUTCOME_UNKNOWN: ("?", "yellow"),
    StepState.ESCALATED: ("!", "bold red"),
    StepState.SUCCEEDED: ("✔", "green"),
    StepState.FAILED: ("✘", "red"),
    StepState.SKIPPED: ("»", "dim"),
    StepState.CANCELLED: ("-", "dim"),
    StepState.UNDO_READY: ("↶", "yellow"),
    StepState.UNDO_OFFERED: ("↶", "yellow"),
    StepState.UNDO_RUNNING: ("↶", "yellow"),
    StepState.UNDO_RETRY_WAIT: ("↶", "yellow"),
    StepState.UNDO_OUTCOME_UNKNOWN: ("?", "yellow"),
    StepState.UNDO_FAILED: ("!", "bold red"),
    StepState.COMPENSATED: ("↶", "magenta"),
    StepState.VERIFY_READY: ("?", "yellow"),
    StepState.VERIFY_OFFERED: ("?", "yellow"),
    StepState.VERIFY_RUNNING: ("?", "yellow"),
    StepState.VERIFY_RETRY_WAIT: ("?", "yellow"),
    StepState.UNDO_SKIPPED: ("»", "red"),
}

# Nothing moves in these: the first to be left out when there are too many.
AT_REST = frozenset(
    {
        StepState.PENDING,
        StepState.SUCCEEDED,
        StepState.SKIPPED,
        StepState.CANCELLED,
        StepState.COMPENSATED,
        StepState.UNDO_SKIPPED,
    }
)
HELD = frozenset(
    {
        StepState.OFFERED,
        StepState.RUNNING,
        StepState.UNDO_OFFERED,
        StepState.UNDO_RUNNING,
        StepState.VERIFY_OFFERED,
        StepState.VERIFY_RUNNING,
    }
)
# Where other steps begin because of it.
CAUSES = AT_REST | {StepState.FAILED}
SATISFIED = frozenset({StepState.SUCCEEDED, StepState.SKIPPED})

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and the style that rich would give it."""

    text: str
    style: str = ""


def render_tree(
    job: Job, now: datetime, agents: Mapping[str, Agent] | None = None, *, steps_shown_max: int = STEPS_SHOWN_MAX
) -> list[Line]:
    """The job and its steps in the order of the definition.

    Args:
        job: With its steps.
        now: The time to count from and to, aware; the leader's wall clock gave the job's times.
        agents: The open sessions by id, as fresh as the job. With them a step whose agent is gone shows how long its
            lease still holds it; without them nobody can tell, since a lease that is renewed moves no job.
        steps_shown_max: More steps than this are counted by state instead, those at rest first.
    """
    shown = _shown(job.steps, steps_shown_max)
    # Of very many steps only some came along, but all are counted.
    all_ = Counter(job.step_counts) if job.steps_total > len(job.steps) else Counter(step.state for step in job.steps)
    left_out = all_ - Counter(step.state for step in shown)
    width = max((len(step.step_id) for step in shown), default=0)
    rows = [
        Line(
            f"{MARKS[step.state][0]} {step.step_id:<{width}}  {describe(step, job, now, agents)}", MARKS[step.state][1]
        )
        for step in shown
    ]
    if left_out:
        rows.append(Line("… and " + ", ".join(f"{count} {state}" for state, count in left_out.items()), "dim"))
    branches = ["├─ "] * (len(rows) - 1) + ["└─ "]
    return [
        _header(job, now),
        *_counted(all_, shown),
        *(Line(branch + row.text, row.style) for branch, row in zip(branches, rows, strict=bool(rows))),
        *_footer(job),
    ]


def describe(step: Step, job: Job, now: datetime, agents: Mapping[str, Agent] | None = None) -> str:
    """What a step does or waits for, in words."""
    lost = _lost(step, now, agents)
    if lost:
        return lost
    match step.state:
        case StepState.PENDING:
            return _pending(step, job)
        case StepState.READY if job.state is JobState.PAUSED:
            return "held back: the job is paused"
        case StepState.READY:
            return f"waits {_vacancy(step, agents)}{_due(step, now)}"
        case StepState.RUNNING:
            return f"{_attempt(step)}{_elapsed(step, now)}{_progress(step)}"
        case StepState.RETRY_WAIT | StepState.UNDO_RETRY_WAIT:
            undo = "undo " if step.state is StepState.UNDO_RETRY_WAIT else ""
            return f"{undo}{_attempt(step)} failed{_why(step)}{_due(step, now)}"
        case StepState.SUCCEEDED:
            return "succeeded"
        case StepState.SKIPPED | StepState.CANCELLED:
            return step.state.lower() + (", but may have happened" if step.maybe_done else "")
        case StepState.COMPENSATED:
            return "undone"
        case StepState.UNDO_SKIPPED:
            return f"not undone{_who_passed_over(step)}"
        case StepState.FAILED:
            return f"failed after {_attempt(step)}{_why(step)}" if step.attempts else f"failed{_why(step)}"
        case StepState.ESCALATED | StepState.UNDO_FAILED:
            return f"{_words(step.state)}, waits for a person{_why(step)}"
        case StepState.OUTCOME_UNKNOWN | StepState.UNDO_OUTCOME_UNKNOWN:
            return f"{_words(step.state)}{_why(step)}{_due(step, now)}"
        case _:
            # The failure of an attempt before says nothing about this one.
            return f"{_words(step.state)}{_due(step, now)}"


def by_time(steps: Iterable[Step]) -> list[Step]:
    """The steps in the order in which they last changed, for those who see several changes at once.

    Of one batch, what has come to rest goes first: it is why the others began. Then the older token.
    """
    return sorted(steps, key=lambda step: (step.updated_at or _NEVER, step.state not in CAUSES, step.token))


def plain(lines: Sequence[Line]) -> str:
    """The lines as text without colour."""
    return "\n".join(line.text for line in lines)


def rich_text(lines: Sequence[Line]) -> Text:
    """The lines as rich shows them; each stays on one line."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    for number, line in enumerate(lines):
        text.append(("\n" if number else "") + line.text, style=line.style)
    return text


def seconds(duration_s: float) -> str:
    """A duration for a person: "0.4 s", "2 min 5 s", "3 h 12 min", "2 d 1 h"."""
    if duration_s < 60:
        return f"{max(0.0, duration_s):.1f} s"
    for size_s, name, smaller_s, smaller_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min")):
        if duration_s >= size_s:
            rest = int(duration_s % size_s // smaller_s)
            return f"{int(duration_s // size_s)} {name}" + (f" {rest} {smaller_name}" if rest else "")
    rest = int(duration_s % 60)
    return f"{int(duration_s // 60)} min" + (f" {rest} s" if rest else "")


def _shown(steps: Sequence[Step], steps_shown_max: int) -> Sequence[Step]:
    if len(steps) <= steps_shown_max:
        return steps
    by_interest = sorted(range(len(steps)), key=lambda place: (steps[place].state in AT_REST, place))
    return [steps[place] for place in sorted(by_interest[:steps_shown_max])]


def _header(job: Job, now: datetime) -> Line:
    took = f"  {seconds(((job.ended_at or now) - job.submitted_at).total_seconds())}" if job.submitted_at else ""
    cancel = "  cancel requested" if job.cancel_requested and not job.state.final else ""
    definition = f"{job.definition_name} v{job.definition_version}"
    text = f"job {job.job_id}  {definition}  {job.state}{took}{_deadline(job, now)}{cancel}"
    return Line(text, JOB_STYLES.get(job.state, ""))


def _deadline(job: Job, now: datetime) -> str:
    """How long a job may still take; nothing when it has ended, or may take as long as it takes."""
    if job.deadline_at is None or job.state.final:
        return ""
    left_s = (job.deadline_at - now).total_seconds()
    return f"  deadline in {seconds(left_s)}" if left_s > 0 else "  deadline passed"


def _counted(all_: Mapping[StepState, int], shown: Sequence[Step]) -> list[Line]:
    """All steps by state, when not all of them are shown."""
    total = sum(all_.values())
    if total <= len(shown):
        return []
    return [Line(f"{total} steps: " + ", ".join(f"{count} {state}" for state, count in all_.items()))]


def _footer(job: Job) -> list[Line]:
    lines = []
    if job.failure:
        place = f"{job.failure.step_id}: " if job.failure.step_id else ""
        lines.append(Line(f"why: {place}{_one_line(job.failure.text)}", "red"))
    if job.remainders:
        lines += [Line(text, "red") for text in remainder_lines(job)]
    elif job.remaining:
        lines.append(Line(f"still done, and not undone: {', '.join(job.remaining)}", "red"))
    return lines


def remainder_lines(job: Job) -> list[str]:
    """What remains done and why, a line for each step, as many as a terminal shows."""
    shown = job.remainders[:REMAINDERS_SHOWN_MAX]
    lines = [
        f"{'may still be done' if one.may_be_done else 'still done'}, and not undone: {one.step_id}: "
        f"{_one_line(one.reason)}"
        for one in shown
    ]
    more = len(job.remainders) - len(shown)
    return [*lines, f"… and {more} more"] if more else lines


def _who_passed_over(step: Step) -> str:
    """Who passed over its undo, and why; nothing when its job was ended without it."""
    if step.failure is None or step.failure.kind != "PASSED_OVER":
        return ""
    return f": {_one_line(step.failure.message)}"


def _lost(step: Step, now: datetime, agents: Mapping[str, Agent] | None) -> str:
    """How long a step waits for an agent that is gone; empty when its agent is there, or nobody knows."""
    if step.due_for == "fence" and step.due_at:
        left = seconds((step.due_at - now).total_seconds())
        return f"{_words(step.state)}: waits {left} until nothing of its lost attempt can act any more"
    if agents is None or step.state not in HELD or not step.session_id:
        return ""
    agent = agents.get(step.session_id)
    if agent and agent.connected:
        return ""
    ends_at = agent.lease_ends_at if agent and agent.lease_ends_at else step.lease_ends_at
    if not ends_at:
        return "agent lost"
    return f"agent lost: waits {seconds((ends_at - now).total_seconds())} until its lease has surely ended"


def _pending(step: Step, job: Job) -> str:
    if job.state.final:
        return "never begun"
    states = {other.step_id: other.state for other in job.steps}
    missing = [need for need in step.needs if states.get(need) not in SATISFIED]
    return f"waits for: {', '.join(missing)}" if missing else "pending"


def _vacancy(step: Step, agents: Mapping[str, Agent] | None) -> str:
    """What a ready step waits for; when nobody knows the agents, what holds in any case."""
    queue = step.queue or "default"
    if agents is None:
        return f'for an agent with a free slot that offers "{step.action}" on queue "{queue}"'
    return why_it_waits(step.action, queue, agents.values())


def _attempt(step: Step) -> str:
    return f"attempt {step.attempts}/{step.attempts_max}" if step.attempts_max else f"attempt {step.attempts}"


def _elapsed(step: Step, now: datetime) -> str:
    return f", {seconds((now - step.updated_at).total_seconds())}" if step.updated_at else ""


def _progress(step: Step) -> str:
    """How far it is. What an agent says is shown as it is: only JSON is readable."""
    if not step.progress_payload or not step.progress_payload.is_json:
        return ""
    return f", progress {_one_line(step.progress_payload.data.decode('utf-8', 'replace'))}"


def _why(step: Step) -> str:
    return f": {_one_line(step.failure.text)}" if step.failure else ""


def _due(step: Step, now: datetime) -> str:
    """The timer of the step; the queue timeout is a day away as a rule and would only distract."""
    if not step.due_at or not step.due_for or step.due_for == "queue timeout":
        return ""
    return f"; {step.due_for} in {seconds((step.due_at - now).total_seconds())}"


def _words(state: StepState) -> str:
    return state.lower().replace("_", " ")


def _one_line(text: str) -> str:
    return " ".join(text.split())
