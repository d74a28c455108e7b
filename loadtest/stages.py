"""The stages of a mix, as locust asks for them. It takes every such class of a locustfile, so this one is elsewhere."""

from __future__ import annotations

from locust import LoadTestShape
from typing_extensions import override

from loadtest.mix_file import Stage, stage_at


class Stages(LoadTestShape):
    """The stages of a mix."""

    def __init__(self, stages: list[Stage]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of locust
        self._stages = stages

    @override
    def tick(self) -> tuple[int, float] | None:
        return stage_at(self._stages, self.get_run_time())  # type: ignore[no-untyped-call]  # of locust
