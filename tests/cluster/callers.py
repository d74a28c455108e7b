"""Callers of all nodes who submit, read, list and cancel a few jobs at once, and write down what they were told when.

They use the generated stubs, one call for each line of the history, so that every answer counts as it came: a "no" must
be true, and only what nobody can know may have happened or not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from typing import Final, TypeAlias, assert_never

import grpc
import grpc.aio

from stepward.client import Definition
from stepward.client.answers import error_from
from stepward.client.errors import CommitUnknown, JobNotFound, NoLeader, NotLeader, Overloaded, Unreachable
from stepward.v1 import common_pb2, job_service_pb2_grpc
from stepward.v1 import job_service_pb2 as pb
from tests.cluster.nodes import Nodes
from tests.linear.checker import NEVER, Finding, Operation, Verdict, judge
from tests.linear.jobs import Cancel, Cancelled, Get, Jobs, Listed, ListRunning, Seen, Submit, Submitted

DEFINITION: Final = "waits-for-nobody"
# One caller gives up here; the call may still be carried out.
CALL_S_MAX: Final = 2.5
PAUSE_S_MAX: Final = 0.02
# A node that is away is left alone for a moment.
AWAY_S_MAX: Final = 0.2
# Everybody uses a key for so long, so that calls on it meet.
CANCELLED: Final = common_pb2.JOB_STATE_CANCELLED
KEY_S: Final = 0.25
CALLERS_A_NODE: Final = 2
# These say that nothing was done, and nothing will be.
NO: Final = (NoLeader, NotLeader, Overloaded)
# These say that nobody knows.
MAYBE: Final = (CommitUnknown, Unreachable)

Call: TypeAlias = Submit | Get | Cancel | ListRunning


def lasting() -> Definition:
    """A definition whose jobs run until they are cancelled."""
    definition = Definition(DEFINITION)
    definition.step("wait", queue="nobody")
    return definition


class Callers:
    """All of them, and their histories by key. One at each node knows no other."""

    def __init__(self, nodes: Nodes, chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance
        self._ids: dict[str, str] = {}
        self.histories: dict[str, list[Operation]] = defaultdict(list)
        self.answers: Counter[str] = Counter()

    async def call(self, until: asyncio.Event) -> None:
        """Call until an event is set."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._nodes.addresses.values():
                for _ in range(CALLERS_A_NODE):
                    tasks.create_task(self._one(address, random.Random(self._chance.random()), until))

    def findings(self) -> dict[str, Finding]:
        """What no order explains, by key.

        Raises:
            AssertionError: A history is too entangled to be judged.
        """
        found = {key: judge(history, Jobs()) for key, history in self.histories.items()}
        assert all(finding.verdict is not Verdict.UNDECIDED for finding in found.values())
        return {key: finding for key, finding in found.items() if finding.verdict is Verdict.VIOLATED}

    async def _one(self, address: str, chance: random.Random, until: asyncio.Event) -> None:
        began = time.monotonic()
        async with grpc.aio.insecure_channel(address) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            while not until.is_set():
                key = f"key-{int((time.monotonic() - began) / KEY_S)}"
                answered = await self._write_down(stub, key, self._draw(key, chance))
                await asyncio.sleep(chance.uniform(0, PAUSE_S_MAX if answered else AWAY_S_MAX))

    def _draw(self, key: str, chance: random.Random) -> Call:
        job_id = self._ids.get(key)
        kinds: list[Call] = [Submit(), ListRunning()]
        if job_id is None:
            return chance.choice(kinds)
        kinds = [Submit(), Get(job_id), ListRunning(), Cancel(job_id)]
        return kinds[chance.choices(range(len(kinds)), weights=[2, 5, 3, 1])[0]]

    async def _write_down(self, stub: job_service_pb2_grpc.JobServiceAsyncStub, key: str, call: Call) -> bool:
        """Make a call, and keep what came of it. Returns whether the node could be asked at all."""
        began_at = time.monotonic()
        try:
            answer = await self._made(stub, key, call)
        except grpc.aio.AioRpcError as failed:
            error = error_from(failed, "")
            self.answers[type(error).__name__] += 1
            if isinstance(error, JobNotFound):
                answer = Seen(found=False)
            elif isinstance(error, MAYBE):
                # A read that was not answered has done nothing.
                if not isinstance(call, Get | ListRunning):
                    self.histories[key].append(Operation(began_at, NEVER, call, None))
                return not isinstance(error, Unreachable)
            elif isinstance(error, NO):
                return True
            else:
                raise
        else:
            self.answers[type(answer).__name__] += 1
        self.histories[key].append(Operation(began_at, time.monotonic(), call, answer))
        return True

    async def _made(self, stub: job_service_pb2_grpc.JobServiceAsyncStub, key: str, call: Call) -> object:
        """Make a call. The key is a label, too, by which its jobs are listed."""
        match call:
            case Submit():
                job = pb.JobSubmission(definition_name=DEFINITION, idempotency_key=key, labels={"key": key})
                submitted = await stub.SubmitJob(pb.SubmitJobRequest(job=job), timeout=CALL_S_MAX)
                self._ids[key] = submitted.job_id
                return Submitted(submitted.job_id, submitted.duplicate, submitted.state == CANCELLED)
            case Get(job_id):
                got = await stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=CALL_S_MAX)
                return Seen(found=True, cancelled=got.job.state == CANCELLED)
            case Cancel(job_id):
                ended = await stub.CancelJob(pb.CancelJobRequest(job_id=job_id), timeout=CALL_S_MAX)
                return Cancelled(ended.already)
            case ListRunning():
                wanted = pb.JobFilter(states=[common_pb2.JOB_STATE_RUNNING], labels={"key": key})
                listed = await stub.ListJobs(pb.ListJobsRequest(filter=wanted), timeout=CALL_S_MAX)
                return Listed(tuple(job.job_id for job in listed.jobs))
            case _:
                assert_never(call)
