"""Following a job for a person: what is said, and when."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import pytest

from stepward.client.cli.following import Hints, Pace, follow
from stepward.client.cli.session import Session
from stepward.client.cli.views import LineView, LiveView
from stepward.client.errors import JobNotFound, WaitTimedOut
from stepward.client.values import Agent, Job, JobChange, JobState, Step, StepState
from stepward.v1 import agent_service_pb2, common_pb2, job_pb2, job_service_pb2
from tests.client.scripted_server import Broken, Refused, ScriptedServer, Silence

QUICK = Pace(look_every_s=0.01, agents_every_s=0.01, agents_timeout_s=0.5, ready_patience_s=0.0)


def ready(*actions: str, queue: str = "trip") -> Job:
    steps = [Step(step_id=f"to-{one}", state=StepState.READY, action=one, queue=queue) for one in actions]
    return Job(job_id="0-1", state=JobState.RUNNING, steps=tuple(steps))


def agent(*actions: str, **fields: Any) -> Agent:
    defaults: dict[str, Any] = {"session_id": "s", "queue": "trip", "actions": actions, "connected": True}
    return Agent(**defaults | fields)


def book(there: str = 'no agent is connected to queue "trip"') -> str:
    return (
        f'step "to-book" waits: no agent offers action "book" on queue "trip" ({there}); '
        "start one with: stepward agent run MODULE --queue trip"
    )


BOOK = book()


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ([], [BOOK]),
        ([agent("book")], []),
        # Somebody is there, but not for this.
        ([agent("pay")], [book('1 agent on it, with "pay"')]),
        ([agent("books")], [book('1 agent on it, with "books"; did you mean "books"?')]),
        ([agent("book", queue="default")], [BOOK]),
        ([agent("book", connected=False)], [BOOK]),
        ([agent("book", draining=True)], [BOOK]),
    ],
)
def test_hint(agents: list[Agent], said: list[str]) -> None:
    """When a step has waited long enough and nobody offers what it needs."""
    hints = Hints(3.0)
    hints.waiting(ready("book"), 10.0)

    assert hints.hints(ready("book"), {one.session_id: one for one in agents}, 13.0, "") == said


def test_hint_has_patience_and_is_said_once() -> None:
    """Not before the patience is over, once for each action and queue, and anew for each step that begins to wait."""
    hints = Hints(3.0)

    assert hints.hints(ready("book"), {}, 10.0, "") == []
    assert hints.hints(ready("book"), {}, 12.9, "") == []
    # It ran in between: its wait begins again.
    assert hints.hints(ready(), {}, 12.95, "") == []
    assert hints.hints(ready("book"), {}, 13.0, "") == []
    assert hints.hints(ready("book", "pay"), {}, 16.0, "") == [BOOK]
    assert hints.hints(ready("book", "pay"), {}, 18.0, "") == []
    assert len(hints.hints(ready("book", "pay"), {}, 19.0, " --server a:1")) == 1


def test_hint_names_the_default_queue() -> None:
    """An empty queue is the default one, and the command leads to the same cluster."""
    hints = Hints(0.0)
    (text,) = hints.hints(ready("book", queue=""), {}, 0.0, " --server a:1")

    assert text.endswith("stepward agent run MODULE --queue default --server a:1")


class Recorded:
    """A view that remembers."""

    def __init__(self, on_say: Callable[[], None] = lambda: None) -> None:
        self._on_say = on_say
        self.changes: list[JobChange] = []
        self.looks: list[Mapping[str, Agent] | None] = []
        self.said: list[str] = []
        self.closed = False

    def change(self, change: JobChange) -> None:
        self.changes.append(change)

    def look(self, agents: Mapping[str, Agent] | None) -> None:
        self.looks.append(agents)

    def say(self, text: str) -> None:
        self.said.append(text)
        self._on_say()

    def close(self) -> None:
        self.closed = True


def job(state: str, revision: int, step_state: str = "READY", **fields: Any) -> job_service_pb2.WatchJobResponse:
    step = job_pb2.JobStep(
        step_id="to-book",
        state=common_pb2.StepState.Value(f"STEP_STATE_{step_state}"),
        action="book",
        queue="trip",
        **fields,
    )
    number = common_pb2.JobState.Value(f"JOB_STATE_{state}")
    return job_service_pb2.WatchJobResponse(
        job=job_pb2.Job(job_id="0-1", state=number, revision=revision, steps=[step], namespace="n")
    )


def followed(server: ScriptedServer, view: Any, **named: Any) -> Job:
    session = Session(servers=(server.address,))
    with session.client() as client:
        return follow(session, client, "0-1", view, pace=QUICK, **named)


def test_follow_says_what_nobody_would_guess(server: ScriptedServer) -> None:
    """No agent offers the action: the hint comes while the watch is silent, about the job's own namespace."""
    silence = Silence()
    view = Recorded(on_say=silence.end)
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse())
    server.on("WatchJob", [job("RUNNING", 1), silence], [job("COMPLETED", 2, "SUCCEEDED")])

    ended = followed(server, view)

    assert ended.state is JobState.COMPLETED
    assert view.said == [f"{BOOK} --server {server.address}"]
    assert view.closed
    assert {request.namespace for request in server.requests("ListAgents")} == {"n"}


def test_follow_tells_the_view_about_agents(server: ScriptedServer) -> None:
    """While one holds a step; that nobody knows about them is told as well."""
    view, silence = Recorded(), Silence()

    def answer(_request: Any) -> Any:
        if len(view.looks) >= 2:
            silence.end()
        return Broken() if view.looks else agent_service_pb2.ListAgentsResponse()

    server.always("ListAgents", answer)
    server.on("WatchJob", [job("RUNNING", 1, "RUNNING"), silence], [job("COMPLETED", 2, "SUCCEEDED")])

    followed(server, view)

    assert view.looks[0] == {}
    assert None in view.looks
    assert view.said == []


def test_follow_ends_with_a_person(server: ScriptedServer) -> None:
    """An escalated job is not waited for."""
    server.on("WatchJob", [job("RUNNING", 1, "SUCCEEDED"), job("ESCALATED", 2, "ESCALATED"), Silence()])

    assert followed(server, Recorded()).state is JobState.ESCALATED


def test_follow_shows_all_that_led_to_the_end(server: ScriptedServer) -> None:
    """The end may come in several messages; when the rest is out of reach, the end is known all the same."""
    whole, cut_off = Recorded(), Recorded()
    first, second = job("COMPLETED", 2, "SUCCEEDED"), job("COMPLETED", 2, "SUCCEEDED")
    first.events.add(revision=1)
    second.events.add(revision=2)
    server.on("WatchJob", [first, second], [first, Refused(grpc.StatusCode.INTERNAL, "INTERNAL")])

    assert followed(server, whole).state is JobState.COMPLETED
    assert followed(server, cut_off).state is JobState.COMPLETED
    assert [len(view.changes) for view in (whole, cut_off)] == [2, 1]


def test_follow_gives_up(server: ScriptedServer) -> None:
    """What ends the watch ends the follower, and closes the view."""
    view, other = Recorded(), Recorded()
    server.on("WatchJob", [Refused(grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")], [job("RUNNING", 1), Silence()])
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse())

    with pytest.raises(JobNotFound):
        followed(server, view)
    with pytest.raises(WaitTimedOut, match="job 0-1 has not ended"):
        followed(server, other, wait_max_s=0.1)
    assert view.closed
    assert other.closed


def test_lines_tell_of_a_lost_agent_once() -> None:
    """A pipe gets no countdown, but one line."""
    stream = io.StringIO()
    view = LineView(stream)
    held = Step(step_id="a", state=StepState.RUNNING, session_id="s", token=5, attempts=1, attempts_max=5)
    view.change(JobChange(job=Job(job_id="0-1", state=JobState.RUNNING, steps=(held,), revision=1)))

    view.look(None)
    view.look({"s": agent("book")})
    view.look({})
    view.look({})

    assert stream.getvalue().splitlines()[1:] == ["a  RUNNING  attempt 1/5", "a  RUNNING  agent lost"]


def test_a_terminal_gets_a_tree() -> None:
    """Drawn over itself; the last state stays, and so does what was said."""
    stream = io.StringIO()
    view = LiveView(stream)
    view.change(JobChange(job=ready("book")))
    view.look({})
    view.say("[bold]a hint")
    view.close()

    assert "[bold]a hint" in stream.getvalue()
    assert "to-book" in stream.getvalue()
