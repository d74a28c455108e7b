"""Four machines: one is made, one changes agents half-way, one is given back, and one needs a person for that.

Some words in a wish have a meaning for the cloud: `taken` is refused for good, `locked` cannot be deleted until
somebody unlocks it, `slow-300` takes 300 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.demo.acting import follow, kill_holder
from stepward.client.demo.findings import Finding, completes, ended, happened_to, listed, undone_in_order
from stepward.client.demo.plays import Cast, Play, Scene
from stepward.client.demo.stories import Journey, Kill, Story
from stepward.client.values import JobState, Step, StepState

if TYPE_CHECKING:
    from stepward.agents.examples.machines.cloud import Answer, Entry

DEFINITION = "machine"

# Parts of a machine in the story in which its agent is killed, and how many are there by then. How far it is travels
# three times in the heartbeat's 6 s, so much is left when that is seen.
PARTS = 10
PARTS_BEFORE_KILL = 2
PART_MS = 700

REASON = "the volume was unlocked by its owner"


def stories(fast: bool) -> tuple[Story, ...]:
    """What is shown."""
    pace = "" if fast else ", slow-400"
    everything = {
        "name": f"db-1.example.org{pace}",
        "network": f"blue{pace}",
        "volume": f"100 GB{pace}",
        "image": f"debian-13{pace}",
        "parts": 3,
    }
    return (
        Story(
            number=1,
            name="machine 1",
            title="Everything works",
            promise="Address and volume side by side, then the machine part by part, its keys, and last its name.",
            input=everything,
            lesson="The machine waits for both, address and volume (`needs: [address, volume]`), and gets their ids.",
        ),
        Story(
            number=2,
            name="machine 2",
            title="An agent is killed in the middle of long work",
            promise=f"The agent is killed when {PARTS_BEFORE_KILL} of {PARTS} parts are there. When its lease has "
            "surely ended, another agent goes on with the part that it came to.",
            input={**everything, "image": f"debian-13, slow-{PART_MS}", "parts": PARTS},
            lesson="After each part the handler says how far it is (`ctx.heartbeat`). That keeps the attempt alive "
            "(the definition allows 6 s of silence) and is what the next attempt finds in "
            "`ctx.last_progress`. What was done after the last report is asked for again; the cloud knows the "
            "part and does nothing.",
        ),
        Story(
            number=3,
            name="machine 3",
            title="The name is taken",
            promise="The last step fails for good, so everything is given back: keys, machine, then volume and "
            "address.",
            input={**everything, "name": "db-1.example.org, taken"},
            lesson="`NameTaken` stands in the definition among the kinds that are not worth another attempt. Volume "
            "and address have no order between them, so they are given back side by side.",
        ),
        Story(
            number=4,
            name="machine 4",
            title="Something cannot be given back until a person helps",
            promise="The name is taken again, and the volume is locked: its undo fails, and the job waits for a "
            "person. The volume is unlocked, the undo is tried again, and the job ends as if nothing had "
            "happened.",
            input={**everything, "name": "db-1.example.org, taken", "volume": "100 GB, locked"},
            lesson="An undo that has failed for good is never passed over in silence: the job stays ESCALATED until "
            "somebody says what is to be done. Here that is `stepward job retry JOB volume --reason TEXT`, after the "
            "volume was unlocked. The address, which has no order with the volume, did not wait for it.",
        ),
    )


def act(scene: Scene) -> Kill | None:
    """Kill the agent of the second machine; be the person whom the fourth one needs."""
    match scene.story.number:
        case 2:
            return kill_holder(scene, "machine", when=came_half_way)
        case 4:
            unlock_and_retry(scene)
    return None


def came_half_way(step: Step) -> bool:
    """Whether the machine is being installed and some parts are reported."""
    progress = step.progress or {}
    return step.state is StepState.RUNNING and progress.get("part", 0) >= PARTS_BEFORE_KILL


def unlock_and_retry(scene: Scene) -> None:
    """What an operator does with a job that waits for one: mend the cause, and try again."""
    from stepward.client.demo.cloud_console import unlock

    follow(scene, until=lambda job: job.state is JobState.ESCALATED)
    key = f"{scene.job_id}/volume/1"
    scene.screen.say(
        f"  a person unlocks the volume, and says: stepward job retry {scene.job_id} volume", "bold yellow"
    )
    unlock(scene.stage.service_address, key)
    scene.client.retry_step(scene.job_id, "volume", reason=REASON)


def file() -> Path:
    """The definition."""
    from stepward.agents.examples.machines import agent

    return agent.DEFINITION


def read(path: Path) -> list[Entry]:
    """The cloud's record."""
    from stepward.agents.examples import ledger
    from stepward.agents.examples.machines import cloud

    return ledger.read_as(path, cloud.Entry)


def number(answer: Answer) -> str:
    """The id of what was created or deleted."""
    return answer.id


def judge(journeys: Sequence[Journey], entries: Sequence[Entry]) -> list[Finding]:
    """From the histories, and from the record."""
    first, second, third, fourth = journeys
    return [
        *completes(first),
        *_goes_on(second, entries),
        ended(third, JobState.COMPENSATED),
        undone_in_order(third, {"keys"}, {"machine"}, {"address", "volume"}),
        ended(fourth, JobState.COMPENSATED),
        undone_in_order(fourth, {"keys"}, {"machine"}, {"address", "volume"}),
        *_needed_a_person(fourth),
        *_record(journeys, entries),
    ]


def _goes_on(journey: Journey, entries: Sequence[Entry]) -> list[Finding]:
    calls = [entry.call for entry in entries if entry.call.job == journey.job.job_id and entry.call.verb == "install"]
    by_token: dict[int, list[int]] = {}
    for call in calls:
        by_token.setdefault(call.token, []).append(call.part)
    attempts = [by_token[token] for token in sorted(by_token)]
    holders = {
        event.session_id for event in journey.history if event.type == "StepOffered" and event.step_id == "machine"
    }
    return [
        *completes(journey),
        Finding(
            claim=f"{journey.story.name} was begun by one agent and finished by another",
            seen=listed(sorted(journey.agents.get(session, session) for session in holders)),
            holds=len(holders) == 2,
        ),
        Finding(
            claim="the second attempt began with a part that the first had come to, not with the first part",
            seen=f"parts by attempt: {attempts}",
            holds=len(attempts) == 2 and PARTS_BEFORE_KILL < attempts[1][0] <= attempts[0][-1] + 1,
        ),
    ]


def _needed_a_person(journey: Journey) -> list[Finding]:
    undone = happened_to(journey.history, "UndoSucceeded")
    reasons = [event.detail for event in journey.history if REASON in event.detail]
    return [
        Finding(
            claim=f"{journey.story.name} waited for a person, and the retry and its reason stand in the history",
            seen=listed(reasons) or "nothing",
            holds=bool(reasons),
        ),
        Finding(
            claim="the address did not wait for the volume, which a person had to unlock",
            seen=f"undone: {listed(undone)}",
            holds=undone[-1:] == ["volume"],
        ),
    ]


def _record(journeys: Sequence[Journey], entries: Sequence[Entry]) -> list[Finding]:
    from stepward.agents.examples.machines import cloud_record

    wrong = cloud_record.breaches(entries, {journey.job.job_id: str(journey.job.state) for journey in journeys})
    there = cloud_record.standing(entries)
    ids = sorted(id_ for ids in there.values() for id_ in ids)
    return [
        Finding(
            claim="in the cloud there is everything of the machines that completed, once, and nothing of the others",
            seen=listed(wrong) or f"{len(entries)} calls; there are {listed(ids)}",
            holds=not wrong,
        )
    ]


INTRODUCTION = """\
# Four machines, batch by batch

This page was written by `stepward demo machines --fast --docs docs`: it is what a real run did, not what it should do.
`make docs` writes it anew.

A machine needs an address and a volume, is installed part by part, gets keys and, last, a name. Everything can be given
back. Two agents do the work; the things are kept by a cloud, a process of its own, which records every call. By hand:

```
stepward dev
stepward agent run stepward.agents.examples.machines.agent
stepward job run machine -i @agents/stepward/agents/examples/machines/machine.json
stepward job run machine -i @agents/stepward/agents/examples/machines/machine.json -i name=taken
```
"""

PLAY = Play(
    name="machines",
    definition=DEFINITION,
    file=file,
    cast=Cast(
        service="cloud",
        service_module="stepward.agents.examples.machines.cloud_service",
        agent_module="stepward.agents.examples.machines",
        flag="--cloud",
    ),
    stories=stories,
    act=act,
    read=read,
    number=number,
    judge=judge,
    introduction=INTRODUCTION,
)
