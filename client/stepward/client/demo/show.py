"""The order of events: start everything, tell the stories, judge them, end everything."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from stepward.client.blocking_client import Client
from stepward.client.demo import page
from stepward.client.demo.acting import DemoError, follow
from stepward.client.demo.findings import Finding
from stepward.client.demo.plays import Play, Scene
from stepward.client.demo.processes import ChildError
from stepward.client.demo.screen import Screen
from stepward.client.demo.stage import AGENTS, Stage, interrupted_by_sigterm
from stepward.client.demo.stories import Journey, Story
from stepward.client.errors import StepwardError

PAUSE_S = 1.5

# The server is on this machine; when it does not answer, it is gone.
CALL_S_MAX = 3.0


def run(play: Play, *, fast: bool, docs: Path | None, keep: bool) -> int:
    """The whole demo; see `main`."""
    screen = Screen()
    stage = Stage(play, Path(tempfile.mkdtemp(prefix="stepward-demo-")))
    failed = True
    try:
        with interrupted_by_sigterm():
            failed = not perform(stage, screen, fast=fast, docs=docs)
    except (ChildError, DemoError, StepwardError) as error:
        screen.say(f"✘ {error}", "bold red")
    finally:
        stage.close()
        if keep or failed:
            screen.say(f"Data and logs are in {stage.folder}; the server's log is {stage.folder / 'server.log'}.")
        else:
            shutil.rmtree(stage.folder, ignore_errors=True)
    return 1 if failed else 0


def perform(stage: Stage, screen: Screen, *, fast: bool, docs: Path | None) -> bool:
    """Everything but the cleaning up. Returns whether all came as promised."""
    began = time.monotonic()
    screen.say(f"Starting a server, a {stage.play.cast.service} and two agents on this machine ...", "dim")
    stage.open()
    with Client(stage.address, timeout_s=CALL_S_MAX) as client:
        stage.prepare(client)
        screen.say(f"Server at {stage.address}; agents {' and '.join(AGENTS)} wait for work.", "dim")
        journeys = []
        for story in stage.play.stories(fast):
            journeys.append(tell(story, client, stage, screen))
            time.sleep(0 if fast else PAUSE_S)
    findings, entries = settle(journeys, stage, screen)
    if docs:
        written = docs / f"{stage.play.name}.md"
        written.write_text(page.render(stage.play, journeys, entries, findings), encoding="utf-8")
        screen.say(f"Written: {written}", "dim")
    holds = all(finding.holds for finding in findings)
    screen.say(f"{'All as promised' if holds else 'Not as promised'}, in {time.monotonic() - began:.0f} s.", "bold")
    return holds


def tell(story: Story, client: Client, stage: Stage, screen: Screen) -> Journey:
    """Run one job and show it."""
    screen.title(f"{story.name.capitalize()}: {story.title}")
    screen.say(story.promise)
    submitted = client.submit(stage.play.definition, dict(story.input))
    with screen.tree() as tree:
        scene = Scene(story, submitted.job_id, client, stage, screen, tree)
        kill = stage.play.act(scene)
        job = follow(scene, until=lambda job: job.state.final)
        stage.play.settle(scene)
    journey = Journey(
        story=story, job=job, history=tuple(client.history(job.job_id)), agents=dict(stage.names), kill=kill
    )
    screen.history(journey)
    return journey


def settle(journeys: list[Journey], stage: Stage, screen: Screen) -> tuple[list[Finding], list[Any]]:
    """Hold what happened against what was promised, and against the outside world's record."""
    entries = stage.play.read(stage.ledger)
    findings = stage.play.judge(journeys, entries)
    screen.title("Was it as promised?")
    screen.say(f"From the histories, and from the record that the {stage.play.cast.service} kept of every call:", "dim")
    screen.findings(findings)
    return findings, entries
