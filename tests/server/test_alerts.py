"""The alerts that come with the server: each names what a node tells, is silent when all is well, and fires."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

import stepward.server
from stepward.server.metrics import METRICS, PREFIX, SPREADS
from tests.server import cluster as clusters
from tests.server import promql
from tests.server.promql import Labels, Scrape
from tests.server.test_metrics import fetch

FILE: Final = Path(stepward.server.__path__[0]) / "alerts.yml"
RULES: Final[list[dict[str, Any]]] = [
    rule for group in YAML(typ="safe").load(FILE.read_text())["groups"] for rule in group["rules"]
]
NAMES: Final = [rule["alert"] for rule in RULES]
HEALTHY_S: Final = 20.0
# Told only while there is something to tell.
ONLY_IN_TROUBLE: Final = {"stepward_breaker_open"}


def scrape_of(*samples: tuple[str, dict[str, str], float]) -> Scrape:
    found: dict[str, list[tuple[Labels, float]]] = {}
    for name, labels, value in samples:
        found.setdefault(name, []).append((frozenset({"job": "stepward", **labels}.items()), value))
    return found


def each_node(name: str, *values: float, **labels: str) -> Scrape:
    """One metric as three nodes tell it."""
    return scrape_of(*((name, {"instance": f"n{n}", **labels}, value) for n, value in enumerate(values, start=1)))


# What was scraped before and is now, for which an alert fires, and for which it just does not.
FIRES: Final[dict[str, tuple[tuple[Scrape, Scrape], tuple[Scrape, Scrape]]]] = {
    "StepwardSupervisorSilent": (
        ({}, each_node("stepward_supervision_silence_seconds", 0.5, 3.1, 0.5)),
        ({}, each_node("stepward_supervision_silence_seconds", 0.5, 3.0, 0.5)),
    ),
    "StepwardSupervisionLost": (
        ({}, each_node("stepward_supervision_silence_seconds", 8.1, 9.0, 60.0)),
        # One node that is cut off has had none for a minute; the others have.
        ({}, each_node("stepward_supervision_silence_seconds", 0.5, 0.5, 60.0)),
    ),
    "StepwardRemediesOff": (
        ({}, each_node("stepward_supervision_stays", 1, 1, 1)),
        ({}, each_node("stepward_supervision_stays", 0, 0, 0)),
    ),
    "StepwardSupervisorsLost": (
        ({}, each_node("stepward_supervision_epochs_lost", 1, 1, 1)),
        ({}, each_node("stepward_supervision_epochs_lost", 0, 0, 0)),
    ),
    "StepwardOverdue": (
        ({}, each_node("stepward_overdue_oldest_seconds", 0, 10.5, 0)),
        ({}, each_node("stepward_overdue_oldest_seconds", 10, 10, 10)),
    ),
    "StepwardDetectionLate": (
        (each_node("stepward_detections_late_total", 0, 3, 0), each_node("stepward_detections_late_total", 0, 4, 0)),
        # It was late long ago, in the same leadership.
        (each_node("stepward_detections_late_total", 0, 4, 0), each_node("stepward_detections_late_total", 0, 4, 0)),
    ),
    "StepwardJobsStuck": (
        (each_node("stepward_jobs_stuck_total", 0, 0, 0), each_node("stepward_jobs_stuck_total", 1, 0, 0)),
        (each_node("stepward_jobs_stuck_total", 1, 0, 0), each_node("stepward_jobs_stuck_total", 1, 0, 0)),
    ),
    "StepwardIncidentsOpen": (
        ({}, each_node("stepward_incidents_open", 2, 2, 2)),
        ({}, each_node("stepward_incidents_open", 0, 0, 0)),
    ),
    "StepwardBrakeOn": (
        ({}, each_node("stepward_brake_on", 1, 1, 1)),
        ({}, each_node("stepward_brake_on", 0, 0, 0)),
    ),
    "StepwardBreakerOpen": (
        ({}, each_node("stepward_breaker_open", 1, 1, 1, namespace="default", queue="q", action="pay")),
        ({}, {}),
    ),
    "StepwardNoLeader": (
        ({}, each_node("stepward_leader", 0, 0, 0)),
        ({}, each_node("stepward_leader", 0, 1, 0)),
    ),
    "StepwardManyLeaders": (
        ({}, each_node("stepward_leader", 1, 1, 0)),
        ({}, each_node("stepward_leader", 0, 1, 0)),
    ),
    "StepwardNodeUnhealthy": (
        ({}, each_node("stepward_healthy", 1, 0, 1)),
        ({}, each_node("stepward_healthy", 1, 1, 1)),
    ),
    "StepwardNodeNotReady": (
        ({}, each_node("stepward_ready", 1, 0, 1)),
        ({}, each_node("stepward_ready", 1, 1, 1)),
    ),
    "StepwardFollowerAway": (
        ({}, each_node("stepward_follower_connected", 0, peer="n2")),
        ({}, each_node("stepward_follower_connected", 1, peer="n2")),
    ),
    "StepwardFailures": (
        (
            each_node("stepward_failures_total", 3, where="rule"),
            each_node("stepward_failures_total", 4, where="rule"),
        ),
        (
            each_node("stepward_failures_total", 4, where="rule"),
            each_node("stepward_failures_total", 4, where="rule"),
        ),
    ),
    "StepwardDiskLow": (
        ({}, each_node("stepward_disk_free_bytes", 1 << 40, 1 << 27, 1 << 40)),
        ({}, each_node("stepward_disk_free_bytes", 1 << 40, 1 << 28, 1 << 40)),
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_alert_names_what_a_node_tells(rule: dict[str, Any]) -> None:
    """And says how bad it is and what to do, for a person."""
    expression = promql.read(rule["expr"])
    told = {PREFIX + one.name: one for one in METRICS}
    labels = {"job", "instance", *told[expression.name].labels}

    assert expression.name in told
    assert set(expression.by) <= labels
    assert expression.is_increase == (told[expression.name].kind == "counter")
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["description"]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_every_alert_stands_in_the_table() -> None:
    """Once."""
    assert sorted(NAMES) == sorted(FIRES)
    assert {PREFIX + spread.name for spread in SPREADS}.isdisjoint(promql.read(rule["expr"]).name for rule in RULES), (
        "a histogram has no value of its own name"
    )


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_alert_fires_when_it_should(rule: dict[str, Any]) -> None:
    """And not at the bound, or when it is another node's own matter."""
    expression = promql.read(rule["expr"])
    fires, does_not = FIRES[rule["alert"]]

    assert expression.fires(*fires)
    assert not expression.fires(*does_not)


def samples(texts: dict[str, str]) -> Scrape:
    """What all nodes tell, with what Prometheus adds to it."""

    def each() -> Iterator[tuple[str, dict[str, str], float]]:
        for node_id, text in texts.items():
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    yield sample.name, {"instance": node_id, **sample.labels}, sample.value

    return scrape_of(*each())


async def test_no_alert_fires_on_a_cluster_that_is_well(tmp_path: Path) -> None:
    """All of them, on what three nodes really tell; each finds its metric there."""

    async def scraped(cluster: clusters.Cluster) -> Scrape:
        texts = {}
        for node_id, node in cluster.nodes.items():
            texts[node_id] = (await asyncio.to_thread(fetch, node.http_address, "/metrics"))[1]
        return samples(texts)

    async with clusters.running(tmp_path) as cluster, asyncio.timeout(HEALTHY_S):
        before, expressions = await scraped(cluster), {rule["alert"]: promql.read(rule["expr"]) for rule in RULES}
        # What is noted once a second is not there from the beginning.
        missing, firing = {one.name for one in expressions.values()}, set(NAMES)
        while missing or firing:
            await asyncio.sleep(0.2)
            now = await scraped(cluster)
            missing = {one.name for one in expressions.values()} - set(now) - ONLY_IN_TROUBLE
            firing = {name for name, one in expressions.items() if one.fires(before, now)}


@pytest.mark.parametrize(
    "text",
    [
        "stepward_leader",
        "sum(stepward_leader) < 1 or stepward_ready < 1",
        "sum by (job) (stepward_leader < 1",
        "increase(stepward_failures_total) > 0",
        "stepward_failures_total[5m] > 0",
        "rate(stepward_failures_total[5m]) > 0",
    ],
)
def test_expression_that_nobody_has_tried_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="stepward"):
        promql.read(text)


if shutil.which("promtool") is not None:

    def test_promtool_takes_the_file() -> None:
        """Prometheus's own judge, where it is installed."""
        command = ["promtool", "check", "rules", str(FILE)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        assert checked.returncode == 0, checked.stdout + checked.stderr
