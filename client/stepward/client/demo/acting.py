"""What is done to a job while it is shown: it is followed, its agent is killed or paused, a person steps in."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepward.client.demo.stories import Kill

if TYPE_CHECKING:
    from stepward.client.demo.plays import Scene
    from stepward.client.values import Job, Step

# How often the tree is drawn.
LOOK_EVERY_S = 0.1

# No job takes longer, not even one whose agent is killed; a whole demo stays below a minute.
JOB_S_MAX = 25.0


class DemoError(Exception):
    """Something did not come as promised, and the demo cannot go on."""


def follow(scene: Scene, *, until: Callable[[Job], bool]) -> Job:
    """Show the job until something holds of it.

    Raises:
        DemoError: It took too long.
    """
    ends_at = time.monotonic() + JOB_S_MAX
    while True:
        job = scene.client.get(scene.job_id)
        scene.tree.show(job, datetime.now(UTC), scene.stage.sessions(scene.client))
        if until(job):
            return job
        if time.monotonic() > ends_at:
            raise DemoError(f"job {job.job_id} is {job.state} after {JOB_S_MAX:.0f} s; it should have moved on by then")
        time.sleep(LOOK_EVERY_S)


def held(scene: Scene, step_id: str, *, when: Callable[[Step], bool]) -> Step:
    """Wait until an agent holds a step and something holds of it.

    Raises:
        DemoError: The job ended before that was seen, or it took too long.
    """
    job = follow(scene, until=lambda job: job.state.final or when(job.step(step_id)))
    step = job.step(step_id)
    if not when(step):
        raise DemoError(f"job {job.job_id} ended {job.state} before its {step_id} was seen at work")
    return step


def kill_holder(scene: Scene, step_id: str, *, when: Callable[[Step], bool]) -> Kill:
    """Wait until an agent holds the step, then kill it: no handler runs, nothing is said."""
    step = held(scene, step_id, when=when)
    child = scene.stage.agent(step.session_id)
    child.kill()
    killed_at = datetime.now(UTC)
    # Asked now, when no further heartbeat can move it.
    job = scene.client.get(scene.job_id)
    lease_ends_at = job.step(step_id).lease_ends_at
    assert job.submitted_at is not None
    assert lease_ends_at is not None
    scene.screen.say(
        f"  kill -9 {child.pid}: {child.name} dies in the middle of {step_id}; nobody else may have it until its lease "
        "has surely ended",
        "bold yellow",
    )
    return Kill(
        agent=child.name,
        pid=child.pid,
        session_id=step.session_id,
        step_id=step_id,
        token=step.token,
        at_s=(killed_at - job.submitted_at).total_seconds(),
        lease_ends_s=(lease_ends_at - job.submitted_at).total_seconds(),
    )
