"""Faults in leases of sessions, and in what sessions are offered."""

from __future__ import annotations

from tests.museum.exhibit import SCENARIOS, Exhibit, rule, transcript

_LEASES = f"{SCENARIOS}/test_leases.py::"
_SUPERVISION = "tests/core/test_supervision.py::"

EXHIBITS = (
    Exhibit(
        "a session that is being ended may be renewed",
        "etcd-io/etcd#12528: a lease was both renewed and lost (H004)",
        rule("sessions:_current", "session is None or session.ending", "session is None"),
        f"{_LEASES}test_h004_a_session_that_is_being_ended_cannot_be_renewed",
        "SessionRenewed",
    ),
    Exhibit(
        "a session that has ended is made anew under its name",
        "an agent took the new session for the old one, and held what it had lost",
        rule(
            "sessions:open_session",
            "before.ending if before is not None else command.known_generation > 0",
            "before is not None and before.ending",
        ),
        f"{_SUPERVISION}test_a_session_that_is_over_is_not_made_anew",
        "SessionOpened",
    ),
    Exhibit(
        "an older stream renews",
        "a connection that was thought dead kept its agent alive",
        rule("sessions:_current", "session.generation != generation", "session.generation < generation"),
        f"{_SUPERVISION}test_an_older_stream_cannot_renew_or_close",
        "SessionRenewed",
    ),
    Exhibit(
        "a sweep that judged before the renewal ends the session",
        "etcd-io/etcd#12528: a starved leader sent out its queued expiries, and killed leases that were renewed (H003)",
        rule(
            "supervision:_judge_session",
            "if not session.ending and sessions.ends_led_ms(batch, session) > batch.moment.led_ms:",
            "if False:",
        ),
        f"{_LEASES}test_h003_a_renewal_before_the_sweep_saves_the_session",
        "'RETRY_WAIT' == 'RUNNING'",
    ),
    Exhibit(
        "leases end by the wall clock",
        "bakwc/PySyncObj#99: a step of the settable clock fired every timeout (H007)",
        rule("supervision:_judge_session", "> batch.moment.led_ms", "> batch.moment.wall_ms"),
        transcript("cancel_races"),
        "+ at 10000: agent-two is gone",
    ),
    Exhibit(
        "leases end in the time in which nobody led",
        "after an outage of the cluster every agent was taken for dead, since none could have been heard",
        rule("supervision:_judge_session", "> batch.moment.led_ms", "> batch.moment.log_ms"),
        f"{SCENARIOS}/test_timers.py::test_no_lease_ends_in_the_time_in_which_nobody_led",
        "(None is not None) == True",
    ),
    Exhibit(
        "waits stand still while nobody leads",
        "a retry of an hour took an hour of uptime",
        rule(
            "batch:Batch.log_in",
            "TimerAt(Clock.LOG, self.moment.log_ms + ms)",
            "TimerAt(Clock.LED, self.moment.led_ms + ms)",
        ),
        f"{SCENARIOS}/test_timers.py::test_waits_go_on_in_the_time_in_which_nobody_led",
        "'RETRY_WAIT' == 'OFFERED'",
    ),
    Exhibit(
        "the margin for drift is left out",
        "a clock that runs one percent slow holds its lease when it has been given away",
        rule("leases:session_end_led_ms", " + margin_ms(ttl_ms)", ""),
        f"{_LEASES}test_the_lease_inequality",
        "3343 <= 3334",
    ),
    Exhibit(
        "the third of a TTL for acknowledgements is left out",
        "an acknowledgement from memory promised what the record did not (H003)",
        rule("leases:session_end_led_ms", " + -(-ttl_ms // 3)", ""),
        f"{_LEASES}test_the_lease_inequality",
        "6030 <= 5530",
    ),
    Exhibit(
        "the grace for processes that end is left out",
        "a handler that was being killed met its successor",
        rule("leases:session_end_led_ms", " + kill_grace_ms", ""),
        f"{_LEASES}test_the_lease_inequality",
        "3343 <= 1844",
    ),
    Exhibit(
        "a renewal is acknowledged on the record of an earlier leader",
        "what the leader before had heard is taken for what this one knows (H003)",
        rule("leases:may_acknowledge", "session.renewed_epoch == epoch and ", ""),
        f"{_LEASES}test_the_lease_inequality",
        "may_acknowledge",
    ),
    Exhibit(
        "renewals are acknowledged and not recorded",
        "the next leader found leases over that had been renewed (H003)",
        rule("sessions:renew_session", "if due or listens is not", "if listens is not"),
        f"{_SUPERVISION}test_heartbeats_are_recorded_now_and_then",
        "0 == 7",
    ),
    Exhibit(
        "slots are counted without what was cancelled",
        "apache/airflow#36335: the count of what runs drifted away from what runs (H111)",
        rule(
            "offers:_bidders",
            "batch.draft.count(keys.assignments(session_id))",
            "sum(\n"
            "            not batch.draft.require(key, rows.Assignment).cancel\n"
            "            for key in batch.draft.keys(keys.assignments(session_id))\n"
            "        )",
        ),
        transcript("verify_late"),
        "- at 5000: j1 charge: RUNNING -> VERIFY_OFFERED",
    ),
    Exhibit(
        "one agent is offered more than it has slots",
        "an agent was given all that was ready, whatever it could hold (H111)",
        rule("offers:_fill_place", "            chosen.free -= 1\n", ""),
        transcript("two_agents_and_slots"),
        "+ j2 run: OFFERED; StepReady; StepOffered agent-two",
    ),
    Exhibit(
        "a draining agent is offered work",
        "what was told to end was given more, and never did (H070)",
        rule("offers:_bidders", " or session.draining", ""),
        f"{_SUPERVISION}test_nothing_is_offered_to_a_closed_stream_or_a_draining_agent",
        "'OFFERED' == 'READY'",
    ),
    Exhibit(
        "an agent that went silent is offered work",
        "work went to a host that was gone until its lease was over, one step after the other",
        rule("offers:_bidders", "not leases.heard_lately(session, led_ms=batch.moment.led_ms)", "False"),
        f"{_SUPERVISION}test_nothing_is_offered_to_a_session_that_went_silent",
        "'OFFERED' == 'READY'",
    ),
    Exhibit(
        "a session that ends takes its first assignment with it",
        "hatchet-dev/hatchet#4494: an item was gone before its assignment was, and its slot with it (H112)",
        rule("supervision:_end_session", "in enumerate(found):", "in enumerate(found[1:]):"),
        transcript("poison"),
        "- at 7000: agent-one gives back j1 run token=1",
    ),
)
