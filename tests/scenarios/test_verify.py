"""Questions what became of an attempt: what they leave alone, and what they count on."""

from __future__ import annotations

from msgspec.structs import replace

from stepward.server.core import keys, rows, views
from stepward.server.core.commands import CancelJob, Declined, Failed, ProgressMade, Started, Succeeded, Unknown
from stepward.server.core.rows import DefinitionBody, Effect, EventType, Payload, RetrySpec, Step
from tests.core.world import World, step_spec
from tests.scenarios.trips import DONE, GONE, renew, sweep, world_with

AGENT = "agent-one"
NO = Succeeded(Payload(b'{"happened":false}'))
NOBODY_KNOWS = Unknown("NoAnswer", "")
NO_WAIT = RetrySpec(attempts_max=9, initial_ms=0, cap_ms=0)


def asked(*, effect: Effect = Effect.IDEMPOTENT, retry: RetrySpec = NO_WAIT, schedule_to_close_ms: int = 0) -> World:
    """A world with a job of one step, "pay", which an agent has been offered."""
    pay = step_spec("pay", verify=True, effect=effect, retry=retry, schedule_to_close_ms=schedule_to_close_ms)
    world = world_with(DefinitionBody("single", (pay,), b"", b""))
    world.submit("j1", "single")
    return world


def row(world: World) -> Step:
    step = world.step("j1", "pay")
    assert step is not None
    return step


def offer(world: World) -> views.OfferView:
    """What the newest assignment tells its agent."""
    step = row(world)
    key = keys.assignment(step.session_id, step.token, "j1", 0)
    assignment = world.reader.get(key)
    assert isinstance(assignment, rows.Assignment)
    view = views.offer_view(world.reader, key, assignment, world.limits)
    assert view is not None
    return view


def count(world: World, type_: EventType) -> int:
    return sum(event.type is type_ for _, event in world.events("j1"))


def test_a_question_may_be_repeated_whatever_its_step_may() -> None:
    """Its handler goes on for one more TTL like that of any idempotent step, and starts at once."""
    world = asked(effect=Effect.NON_IDEMPOTENT)
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)

    view = offer(world)

    assert (view.part, view.idempotent, view.start) == (rows.Part.VERIFY, True, rows.StartMode.ON_OFFER)


def test_a_question_leaves_the_progress_of_the_action_alone() -> None:
    """It is not given to the question, which cannot go on from it, and what the question says does not replace it."""
    world = asked()
    said = Payload(b'{"page":7}')
    world.report(AGENT, "j1", "pay", ProgressMade(said))
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    given = offer(world).last_progress
    world.report(AGENT, "j1", "pay", ProgressMade(Payload(b'"asking"')))
    world.report(AGENT, "j1", "pay", NO)
    sweep(world)

    assert given is None
    assert (offer(world).part, offer(world).last_progress) == (rows.Part.ACTION, said)


def test_a_lost_question_is_no_attempt_that_anything_waits_for() -> None:
    """It changes nothing: no fence, nothing lingers."""
    world = asked(effect=Effect.NON_IDEMPOTENT)
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    world.report(AGENT, "j1", "pay", Started())
    world.now_ms = 7_000
    sweep(world)

    assert world.step_state("j1", "pay") == "VERIFY_READY"
    assert (row(world).fence_at_led_ms, row(world).lingering) == (0, ())


def test_a_question_that_timed_out_and_was_lost_raises_no_fence() -> None:
    """Nor does it keep one up, when the attempt that the fence was for has been heard of."""
    world = asked()
    world.report(AGENT, "j1", "pay", Started())
    token = row(world).token
    world.now_ms = 7_000
    sweep(world)
    fence_led_ms = row(world).fence_at_led_ms
    world.open("agent-two", ("ask-pay",))
    world.report("agent-two", "j1", "pay", Started())
    world.limits = replace(world.limits, kill_grace_ms=60_000)
    world.now_ms = 17_000
    sweep(world)
    assert [attempt.asks for attempt in row(world).lingering] == [False, True]
    world.now_ms = 80_000
    sweep(world)
    assert [attempt.lost for attempt in row(world).lingering] == [True, True]
    assert row(world).fence_at_led_ms == fence_led_ms > 0

    world.open("agent-one-again", ("pay",))
    world.report("agent-one-again", "j1", "pay", DONE, token=token)

    assert row(world).fence_at_led_ms == 0


def test_poison_is_set_aside_and_not_asked_about() -> None:
    """H063: the losses of the action are counted on behind each question; the last one calls a person at once."""
    world = asked()
    for number in range(1, 4):
        world.report(f"agent-{number}" if number > 1 else AGENT, "j1", "pay", Started())
        world.now_ms += 7_000
        sweep(world)
        if number == 3:
            break
        assert world.step_state("j1", "pay") == "VERIFY_READY"
        world.open(f"agent-{number + 1}", ("pay", "ask-pay"))
        world.report(f"agent-{number + 1}", "j1", "pay", Succeeded(Payload(b"{}")))
        sweep(world)
        assert row(world).lease_losses == number

    failure = row(world).failure
    assert failure is not None
    assert (world.step_state("j1", "pay"), failure.kind, count(world, EventType.StepNotTold)) == (
        "ESCALATED",
        "POISON",
        2,
    )


def test_what_had_failed_stays_failed_when_it_surely_did_not_happen() -> None:
    """It was not told while the job went forward; before the undo it is."""
    world = asked(retry=RetrySpec(attempts_max=1))
    world.report(AGENT, "j1", "pay", Failed("Broken", "", retryable=True, may_have_happened=True))
    world.report(AGENT, "j1", "pay", Succeeded(Payload(b"{}")))
    assert world.step_state("j1", "pay") == "VERIFY_OFFERED"
    assert world.job_state("j1") == "COMPENSATING"

    world.report(AGENT, "j1", "pay", NO)

    assert (world.step_state("j1", "pay"), world.job_state("j1")) == ("FAILED", "COMPENSATED")


def test_what_has_succeeded_is_not_asked_about() -> None:
    """Also when an attempt before was unknown: the success is known."""
    pay, ship = step_spec("pay", verify=True, dependents=(1,), retry=NO_WAIT), step_spec("ship", needs=(0,))
    world = world_with(DefinitionBody("order", (pay, ship), b"", b""))
    world.submit("j1", "order")
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    world.report(AGENT, "j1", "pay", Succeeded(Payload(b"{}")))
    sweep(world)
    world.report(AGENT, "j1", "pay", DONE)
    assert row(world).maybe_done

    world.report(AGENT, "j1", "ship", GONE)

    assert world.step_state("j1", "pay") == "UNDO_OFFERED"


def test_time_goes_on_while_it_is_asked() -> None:
    """The bound over all attempts of the action counts from when it first became ready, not from the answer."""
    world = asked(retry=RetrySpec(attempts_max=9, initial_ms=3_000, cap_ms=3_000), schedule_to_close_ms=10_000)
    world.now_ms = 5_000
    renew(world, AGENT)
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)
    world.now_ms = 9_999
    world.rng.seed(4)
    world.report(AGENT, "j1", "pay", NO)

    failure = row(world).failure
    assert failure is not None
    assert world.step_state("j1", "pay") == "FAILED"
    assert "not tried again" in failure.message


def test_an_answer_in_another_encoding_tells_nothing() -> None:
    """Its bytes may look like an answer by accident."""
    world = asked()
    world.report(AGENT, "j1", "pay", NOBODY_KNOWS)

    world.report(AGENT, "j1", "pay", Succeeded(Payload(b'{"happened":true}', "application/x-protobuf")))

    assert (count(world, EventType.StepFoundDone), count(world, EventType.StepNotTold)) == (0, 1)


def test_an_undo_is_told_the_keys_of_all_generations() -> None:
    """Each of them may have left something behind."""
    pay = step_spec("pay", dependents=(1,))
    world = world_with(DefinitionBody("order", (pay, step_spec("ship", needs=(0,))), b"", b""))
    world.submit("j1", "order")
    world.report(AGENT, "j1", "pay", DONE)
    third = keys.encode_row(replace(row(world), generation=3))
    world.store.apply([(keys.step("j1", 0), third)], [])
    world.reader = type(world.reader)(world.store)

    world.one(CancelJob("j1", ""))
    world.report(AGENT, "j1", "ship", Declined(handed_back=False))

    assert offer(world).idempotency_key == "j1/pay/3/undo"
    assert offer(world).input.data.endswith(b'"idempotency_keys":["j1/pay/1","j1/pay/2","j1/pay/3"]}')


def test_what_is_handed_back_waits_no_longer_than_there_is_time() -> None:
    """The wait is cut at the bound over all attempts, where the step ends with what that says."""
    world = asked(retry=RetrySpec(initial_ms=60_000, cap_ms=60_000), schedule_to_close_ms=5_000)
    world.rng.seed(1)

    world.report(AGENT, "j1", "pay", Declined(handed_back=True))

    assert (world.step_state("j1", "pay"), row(world).timer_at_ms) == ("RETRY_WAIT", 5_000)
