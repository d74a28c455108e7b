"""The definition of `machine.yaml` in Python. Both give the same bytes, so they are one version to a cluster."""

from __future__ import annotations

from stepward.client import Definition, Retry, Timeouts, Undo, input_

QUEUE = "machines"
RETRY = Retry(initial="200ms", cap="5s")
TIMEOUTS = Timeouts(start_to_close="30s")


def machine() -> Definition:
    """A machine with its address, volume, keys and name."""
    definition = Definition(
        "machine", description="Provisions a machine with its address, volume, keys and name.", deadline="1h"
    )
    address = definition.step(
        "address",
        action="allocate-address",
        queue=QUEUE,
        input={"wish": input_("network")},
        retry=RETRY,
        timeouts=TIMEOUTS,
        undo="release-address",
    )
    volume = definition.step(
        "volume",
        action="create-volume",
        queue=QUEUE,
        input={"wish": input_("volume")},
        retry=RETRY,
        timeouts=TIMEOUTS,
        # A volume that cannot be deleted is something for a person, and soon.
        undo=Undo("delete-volume", retry=Retry(attempts_max=2, initial="200ms", cap="1s")),
    )
    server = definition.step(
        "machine",
        action="create-machine",
        queue=QUEUE,
        needs=definition.sinks(),
        input={
            "address": address.output("id"),
            "volume": volume.output("id"),
            "image": input_("image"),
            "parts": input_("parts"),
        },
        retry=RETRY,
        timeouts=Timeouts(start_to_close="10m", heartbeat="6s"),
        undo="delete-machine",
    )
    keys = definition.step(
        "keys",
        action="issue-keys",
        queue=QUEUE,
        needs=[server],
        input={"wish": server.output("id")},
        retry=RETRY,
        timeouts=TIMEOUTS,
        undo="revoke-keys",
    )
    name = definition.step(
        "name",
        action="register-name",
        queue=QUEUE,
        needs=[keys],
        input={"wish": input_("name")},
        retry=Retry(initial="200ms", cap="5s", non_retryable_kinds=["NameTaken"]),
        timeouts=TIMEOUTS,
        undo="unregister-name",
    )
    definition.output({"name": name.output("id"), "address": address.output("id"), "machine": server.output("id")})
    return definition
