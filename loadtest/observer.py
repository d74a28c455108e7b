"""A user who looks at the nodes while others work: what must never be seen, and for how long nobody led."""

from __future__ import annotations

import time

import grpc
from locust import task
from typing_extensions import override

from loadtest.submitters import CHANNEL_OPTIONS
from loadtest.users import Caller, CallFailedError, fire
from loadtest.watchman import Watchman
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import cluster_service_pb2_grpc

LOOK_S_MAX = 1.0


class ChaosObserver(Caller):
    """Asks all nodes how they are. One that is away is no failure: that is what is observed."""

    @override
    def on_start(self) -> None:
        super().on_start()
        self.watchman = Watchman()
        self.channels = [grpc.insecure_channel(one, CHANNEL_OPTIONS) for one in (self.host or "").split(",")]

    @override
    def on_stop(self) -> None:
        for channel in self.channels:
            channel.close()
        super().on_stop()

    @task
    def look(self) -> None:
        """One round."""
        began = time.perf_counter()
        answers = []
        for channel in self.channels:
            stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
            try:
                answers.append(stub.GetStatus(pb.GetStatusRequest(), timeout=LOOK_S_MAX))
            except grpc.RpcError:
                fire(self, "look: a node was away", 0.0)
        seen = self.watchman.look(answers, time.monotonic())
        for text in seen.wrong:
            fire(self, "look", 0.0, CallFailedError(text))
        if seen.leaderless_s is not None:
            fire(self, "look: nobody led", seen.leaderless_s * 1000)
        fire(self, "look", (time.perf_counter() - began) * 1000)
