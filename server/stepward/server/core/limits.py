"""Every bound that the rules check, in one place, each with its unit and its reason.

They must be equal on all nodes of a cluster: the leader alone applies them, but any node may come to lead.
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """Bounds and defaults of the rules. `_max` bounds are inclusive."""

    # A session that is not heard from for this long holds its lease to be over.
    session_ttl_ms: int = 10_000
    # How long a process may need to stop after its lease has ended.
    kill_grace_ms: int = 2_000
    # Session losses after which a step is set aside as poison: more would use up the agents.
    lease_losses_max: int = 3
    # Times that an unanswered offer is sent again before it is withdrawn.
    resends_max: int = 3
    # One payload: an input or an output. gRPC and log limits derive from it.
    payload_bytes_max: int = 262_144
    # Text that is cut rather than refused: what a failure says.
    failure_message_bytes_max: int = 4_096
    failure_kind_chars_max: int = 128
    # Progress that the next attempt may read.
    progress_bytes_max: int = 4_096
    # Names of definitions, steps, actions, queues and namespaces.
    name_chars_max: int = 128
    idempotency_key_chars_max: int = 256
    labels_max: int = 32
    label_key_chars_max: int = 64
    label_value_chars_max: int = 256
    reason_chars_max: int = 1_024
    # Who asked for something, for the history.
    actor_chars_max: int = 128
    # Steps that the answer about a job lists as undone, and as remaining, each: more would crowd out everything else.
    listed_steps_max: int = 1_000
    # Why one of them remains: a thousand of these, their ids and an input are less than a MiB. The whole of a longer
    # one stands in the step.
    remainder_reason_bytes_max: int = 256
    # Payloads that one mapping takes apart, together: sixteen of the largest, some 20 ms.
    mapping_read_bytes_max: int = 4_194_304
    # Steps of a definition, and what one of them may wait for. Each job walks over its steps when it is undone.
    steps_max: int = 10_000
    needs_max: int = 10_000
    # Needs of all steps together: five for each step of the largest definition. Whoever wants every step of one layer
    # behind every step of the one before puts a step between them, which needs all and which all need.
    edges_max: int = 50_000
    # Depth of a JSON template or payload that mapping looks into.
    json_depth_max: int = 64
    # The public message: 200 bytes for each of 10,000 steps. Half of what gRPC clients take that were told nothing.
    definition_bytes_max: int = 2_097_152
    attempts_max: int = 10_000
    retry_factor_max: float = 100.0
    duration_ms_max: int = 365 * 86_400_000
    non_retryable_kinds_max: int = 64
    actions_max: int = 1_000
    slots_max: int = 10_000
    # Sessions that may be open at once. Every batch with something to offer looks at each of them.
    sessions_max: int = 10_000
    submissions_max: int = 1_000
    reports_max: int = 10_000
    page_size_default: int = 50
    page_size_max: int = 1_000
    # Due timers that one sweep judges, so that no batch grows without bound.
    sweep_subjects_max: int = 500
    # Steps that one outcome, or one slice of a walk over a job's steps, looks at in one batch; the next sweep goes on.
    # A batch of so many takes some 10 ms to decide, in which nobody else is heard.
    activation_slice: int = 500
    # Steps that are told of an outcome even in a batch that is full: rows to wait with cost more than a few steps.
    told_least: int = 16
    # Offers that one batch makes.
    offers_max: int = 500
    # Row changes after which a command that goes through many subjects leaves the rest to the next batch. One subject
    # may need some hundreds more.
    batch_writes_max: int = 4_000
    # How long an ended job is kept, with its history and its idempotency key, on log time from its end: 7 days.
    retention_ms: int = 7 * 86_400_000
    # Ended jobs, and rows of them, that one sweep removes: what goes on comes first, and a sweep follows at once.
    purges_max: int = 200
    purge_writes_max: int = 1_000
    # Jobs, and steps of them, that each beat looks at for one that nothing will ever move: some ms a second.
    patrol_jobs_max: int = 50
    patrol_steps_max: int = 500
    # What the supervisor may remedy in any minute, and of that at once: a mistake of ours, or a network that is cut,
    # must not undo thousands of jobs before somebody has looked.
    remediations_per_minute_max: int = 600
    remediations_burst_max: int = 100
    # A mass loss: so many sessions, and so many of those that were open, within so long. Fewer are daily life.
    mass_loss_sessions_min: int = 5
    mass_loss_percent_min: int = 25
    mass_loss_window_ms: int = 10_000
    # A leader is new for so long, and to every session that it has never heard: a loss then may be its own deafness.
    brake_new_leader_ms: int = 10_000
    # Remediations that go first after a mass loss or under a new leader, and how long the others wait for what becomes
    # of those at least: they have been offered again by then, and who was given them is heard from each TTL/6.
    brake_canaries: int = 5
    brake_hold_ms: int = 5_000
    # The breaker of an action opens when so many of so many outcomes within so long were bad: fewer say too little, and
    # half of them is no bad luck. It stays open for as long as a service takes to be started again; then so many probes
    # that end well, one at a time, close it.
    breaker_outcomes_min: int = 100
    breaker_bad_percent_min: int = 50
    breaker_window_ms: int = 60_000
    breaker_open_ms: int = 30_000
    breaker_successes: int = 3
    # Why it opened, with what the last attempt said.
    breaker_reason_bytes_max: int = 512
    # What is looked at to explain why a job does not move, some 20 ms, and told: steps that have begun, open sessions,
    # reasons, and names in each. The supervisor beats once a second.
    explain_steps_max: int = 2_000
    explain_sessions_max: int = 2_000
    explain_reasons_max: int = 50
    explain_names_max: int = 5
    explain_beat_age_ms: int = 3_000
    # Attempts that one step may have that are not confirmed stopped.
    lingering_max: int = 100
    # How long a remedy is told of in the ledger, on log time, and how many are kept, some 300 bytes each: so a bad day
    # takes no more than 60 MB.
    ledger_retention_ms: int = 7 * 86_400_000
    ledger_entries_max: int = 200_000
    # Entries that one sweep removes, some 3 ms; another follows at once.
    ledger_purges_max: int = 500
    # What an entry says of why an attempt failed.
    ledger_failure_bytes_max: int = 256
    # Notices that are remembered for whoever is told of incidents, sent or not, of 20 bytes each.
    notices_max: int = 10_000

    @property
    def accept_deadline_ms(self) -> int:
        """How long an offer may stay without word: one TTL."""
        return self.session_ttl_ms


def cut(text: str, bytes_max: int) -> str:
    """Text of at most so many bytes, cut on a character border."""
    encoded = text.encode()
    return text if len(encoded) <= bytes_max else encoded[:bytes_max].decode(errors="ignore")
