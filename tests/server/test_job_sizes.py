"""What a job without its steps, and a set of offers, may be: everything that they say at its bound, at once."""

from __future__ import annotations

import pytest

from stepward.server import deliveries
from stepward.server.api import convert
from stepward.server.core import remainders
from stepward.server.core.commands import AttemptRef
from stepward.server.core.limits import Limits
from stepward.server.core.rows import (
    CancelReason,
    DefinitionBody,
    Failure,
    Head,
    Job,
    JobState,
    Part,
    Payload,
    Progress,
    StartMode,
    Step,
    StepSpec,
    StepState,
)
from stepward.server.core.views import JobView, OfferView
from tests.core.world import step_spec

LIMITS = Limits()
# What the bounds of pages, of steps and of events leave for it, of the 4 MiB that a client takes.
JOB_BYTES_MAX = 1 << 20
CLIENT_BYTES_MAX = 4 << 20
LONG = "n" * LIMITS.name_chars_max
# Of the characters that take most bytes.
SAID = "\N{RED APPLE}" * (LIMITS.failure_message_bytes_max // 4)
FAILURE = Failure("\N{RED APPLE}" * LIMITS.failure_kind_chars_max, SAID, LONG)


def listed(name: str, state: StepState) -> tuple[StepSpec, Step]:
    """A step of a name as long as may be, with all that can be said of it."""
    return step_spec(name.rjust(LIMITS.name_chars_max, "n")), Step(state, 0, maybe_done=True, failure=FAILURE)


@pytest.mark.parametrize("state", [StepState.UNDO_FAILED, StepState.UNDO_OUTCOME_UNKNOWN])
def test_a_job_of_which_everything_is_at_its_bound_fits_beside_its_steps(state: StepState) -> None:
    """More steps were undone, and more remain, than are listed, each with a failure of the most bytes."""
    count = LIMITS.listed_steps_max + 1
    steps = [listed(f"u{n}", StepState.COMPENSATED) for n in range(count)] + [
        listed(f"r{n}", state) for n in range(count)
    ]
    progress = Progress(JobState.ESCALATED, 1 << 40, 1 << 41, 0, undoing=True, failure=FAILURE, ended_wall_ms=1 << 41)
    labels = {
        str(n).rjust(LIMITS.label_key_chars_max, "k"): "\N{RED APPLE}" * LIMITS.label_value_chars_max
        for n in range(LIMITS.labels_max)
    }
    job = Job(
        LONG,
        LONG,
        (1 << 31) - 1,
        b"",
        Payload(b"x" * LIMITS.payload_bytes_max, "e" * convert.ENCODING_CHARS_MAX),
        "\N{RED APPLE}" * LIMITS.idempotency_key_chars_max,
        labels,
        "",
        1 << 41,
        1,
    )
    body = DefinitionBody(LONG, tuple(spec for spec, _ in steps), b"", b"")
    left = remainders.left_behind(steps, progress, LIMITS)

    said = convert.job(
        JobView("0-" + "0" * 32, job, body, progress, None, FAILURE, left), Head(1, b"", 1, 0, 0, 0, 0, 0, "")
    )

    assert (len(said.undone), len(said.remainders)) == (LIMITS.listed_steps_max, LIMITS.listed_steps_max)
    assert JOB_BYTES_MAX // 2 < said.ByteSize() < JOB_BYTES_MAX


@pytest.mark.parametrize("input_bytes", [0, LIMITS.payload_bytes_max])
@pytest.mark.parametrize("progress_bytes", [0, LIMITS.progress_bytes_max])
def test_a_set_of_offers_fits_into_what_a_client_takes(input_bytes: int, progress_bytes: int) -> None:
    """An agent with thousands of slots comes back: what is open goes out in messages that are cut by an estimate."""
    encoding = "e" * convert.ENCODING_CHARS_MAX
    view = OfferView(
        AttemptRef("0-" + "0" * 32, LONG, 1 << 62),
        action=LONG,
        input=Payload(b"x" * input_bytes, encoding),
        attempt_number=LIMITS.attempts_max,
        idempotency_key=f"0-{'0' * 32}/{LONG}/1000/undo",
        start=StartMode.ON_ACCEPT,
        start_to_close_ms=LIMITS.duration_ms_max,
        heartbeat_ms=LIMITS.duration_ms_max,
        idempotent=True,
        part=Part.UNDO,
        definition_name=LONG,
        last_progress=Payload(b"x" * progress_bytes, encoding),
        cancel=CancelReason.NONE,
    )
    most = -(-deliveries.OFFERS_BYTES_MAX // deliveries.offer_bytes(view))

    assert most * convert.offer(view).ByteSize() < CLIENT_BYTES_MAX
