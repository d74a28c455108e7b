"""The bench as users have it: a plain install, the README's own example, and a cluster that does the same."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from stepward.agents.testing import Bench
from stepward.client.definition_file import loads
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import common_pb2, definition_service_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, submission
from tests.server.plain_agent import agent, failed, succeeded

ROOT = Path(__file__).parents[2]

# What only `pip install 'stepward[server]'` brings.
SERVER_EXTRA = ("lmdb", "pysyncobj", "structlog", "uvloop", "grpc_health", "grpc_reflection", "grpc_status")

TRIP = """
name: trip
steps:
  - {id: flight, undo: {action: cancel-flight}}
  - {id: hotel, needs: [flight], undo: {action: cancel-hotel}, retry: {attempts_max: 2, initial: 10ms}}
  - {id: car, needs: [hotel], retry: {attempts_max: 2, initial: 10ms}}
"""
ACTIONS = ("flight", "hotel", "car", "cancel-flight", "cancel-hotel")


def python(*arguments: str, inside: Path) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=inside, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_of_the_readme(tmp_path: Path) -> None:
    """Its three files, as they stand there."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(python|yaml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, sign in (("thumbs.py", "Agent(queue="), ("thumbs.yaml", "name: thumbs"), ("test_thumbs.py", "Bench(")):
        (block,) = [content for _, content in blocks if sign in content]
        (tmp_path / name).write_text(block)

    told = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_thumbs.py", inside=tmp_path)

    assert "1 passed" in told


def test_plain_install_is_enough(tmp_path: Path) -> None:
    """Neither an agent nor a bench needs what only a node needs, and importing the library imports no rules."""
    script = f"""
        import sys

        sys.modules.update(dict.fromkeys({SERVER_EXTRA!r}))
        from stepward.agents.testing import Bench

        print(any(name.startswith("stepward.server") for name in sys.modules))
        with Bench({{"name": "one", "steps": [{{"id": "only"}}]}}, {{"only": lambda: 1}}) as bench:
            print(bench.run().state)
    """

    assert python("-c", textwrap.dedent(script), inside=tmp_path).split() == ["False", "COMPLETED"]


def test_missing_rules_are_told(tmp_path: Path) -> None:
    """In one sentence that says what to do."""
    script = """
        import sys

        sys.modules["stepward.server"] = None
        from stepward.agents.testing import Bench, BenchError

        try:
            Bench({"name": "one", "steps": [{"id": "only"}]}, {"only": lambda: 1})
        except BenchError as error:
            print(error)
    """

    assert "pip install stepward" in python("-c", textwrap.dedent(script), inside=tmp_path)


async def test_cluster_does_the_same(tmp_path: Path) -> None:
    """The same trip with the same failures has the same history, event for event."""

    def handler(offer: pb.Offer) -> pb.AttemptReport:
        if offer.action == "car" or (offer.action == "hotel" and offer.attempt_number == 1):
            return failed(offer, retryable=True)
        return succeeded(offer, common_pb2.Payload())

    definition = loads(TRIP)
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        apply = definition_service_pb2.ApplyDefinitionRequest(definition=definition)
        await stubs.definitions.ApplyDefinition(apply, timeout=CALL_S_MAX)
        async with agent(stubs, *ACTIONS, handler=handler):
            request = job_service_pb2.RunJobRequest(job=submission("trip"))
            ran = (await stubs.jobs.RunJob(request, timeout=CALL_S_MAX)).job
        asked = job_service_pb2.GetJobHistoryRequest(job_id=ran.job_id)
        told = await stubs.jobs.GetJobHistory(asked, timeout=CALL_S_MAX)
    async with Bench(definition, dict.fromkeys(ACTIONS, lambda: None)) as bench:
        bench.fail("hotel", kind="CarUnavailable", message="no car")
        bench.fail("car", kind="CarUnavailable", message="no car", times=2)
        job = await bench.run_async({})
        benched = [(event.type, event.step_id, event.attempt) for event in bench.history(job)]

    assert common_pb2.JobState.Name(ran.state) == f"JOB_STATE_{job.state}"
    assert benched == [(event.type, event.step_id, event.attempt) for event in told.events]
