"""What must be true at every moment, whatever happens: the oracle sees everything and forgets nothing.

It is told of every step of every replica, of every answer that leaves, and of what agents hold. It knows no rule of the
logbook and none of the core; it compares what they say with what they said before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from stepward.server.core import invariants, keys, rows
from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.core.parts import By, Part, Remedy
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Session
from tests.simulation.clocks import DRIFT_MAX, WALL_ERROR_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Head
    from stepward.server.logbook.outbox import Applied, Standing

# Answers that say nothing of the rows.
SAYS_NOTHING = frozenset(
    {
        Reason.NOT_LEADER,
        Reason.NO_LEADER,
        Reason.COMMIT_UNKNOWN,
        Reason.NODE_DRAINING,
        Reason.OVERLOADED,
        Reason.DISK_FULL,
    }
)


# A term without a leader is one in which two stood at once, or whoever was elected ended at once.
TERMS_A_LEADER_MAX = 2
TERMS_MORE_MAX = 5
# No machine's clock is faster than the one or slower than the other.
_FASTEST = 1 + DRIFT_MAX
_SLOWEST = 1 - DRIFT_MAX
# Instants are whole milliseconds.
_ROUNDING_MS = 2


class ViolationError(AssertionError):
    """Something is true that must never be. `kind` is for counting."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Promise(NamedTuple):
    """What a node has shown to others, so that it may not forget it, whatever happens to it but a wipe.

    It need not be in its rows when it has started, but then in its journal.
    """

    sequence: int = 0
    term: int = 0


class Leased(NamedTuple):
    """A node that may answer reads alone."""

    node_id: str
    term: int


class Oracle:
    """Raises at the first thing that is wrong."""

    def __init__(self) -> None:
        # Newest sequence that an answer has spoken of: nothing that is answered later may know less.
        self.acknowledged = 0
        # When that was which sequence: since so long it was known.
        self._known: list[tuple[int, int]] = [(0, 0)]
        self.counts: Counter[str] = Counter()
        self.promises: dict[str, Promise] = {}
        # By node: what its rows have held since it started.
        self._held: dict[str, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._leaders: dict[int, str] = {}
        self._epochs: dict[int, str] = {}
        self._newest_epoch = 0
        self._applied = 0
        self._clocks = (0, 0)
        self.reboots = 0
        self.walls_jumped = False
        self._tokens: dict[tuple[str, int], int] = {}
        self._ending: set[str] = set()
        # How many remedies there were, and the one of each attempt.
        self._remedies = 0
        self._remedied: dict[tuple[str, int, Part | None, int], LedgerEntry] = {}
        # How many remedies of each part of a step led to another attempt, or might have.
        self.remedies_of: Counter[tuple[str, str, Part | None]] = Counter()
        # Attempts that a batch has granted, by job and token.
        self._granted: set[tuple[str, int]] = set()
        # The true time, and where agents stand, by session: set by the world.
        self.elapsed_ms: Callable[[], int] = lambda: 1 << 62
        self.lease_runs: Callable[[str], bool] = lambda _session_id: False

    # Replicas.

    def started(self, node_id: str, standing: Standing, unapplied: Mapping[int, bytes]) -> None:
        """A node reads its disk. `unapplied`: the hashes of batches that its journal holds behind its rows."""
        sequence, term = self.promises.setdefault(node_id, Promise())
        has_batch = standing.head.sequence >= sequence or unapplied.get(sequence) == self._hashes[sequence]
        if not has_batch or standing.term < term:
            self._forgotten(node_id, standing)
        self._held[node_id] = standing.head.sequence
        self._see_head(node_id, standing)

    def _forgotten(self, node_id: str, standing: Standing) -> None:
        self.red("forgotten", f"{node_id} showed {self.promises[node_id]} and is at {short(standing)}")

    def wiped(self, node_id: str) -> None:
        """A node has lost its disk, and may know nothing."""
        self.promises[node_id] = Promise()

    def stepped(self, node_id: str, standing: Standing) -> None:
        """A step of a replica is over, and its outbox leaves."""
        sequence, term = self.promises.setdefault(node_id, Promise())
        if standing.head.sequence < self._held.get(node_id, 0) or standing.term < term:
            self._forgotten(node_id, standing)
        self._held[node_id] = standing.head.sequence
        self.promises[node_id] = Promise(max(sequence, standing.head.sequence), standing.term)
        followed = self._hashes.get(standing.head.sequence) == standing.head.hash
        self._see_head(node_id, standing)
        if standing.leader_id == node_id and self._leaders.setdefault(standing.term, node_id) != node_id:
            self.red("two leaders", f"{node_id} and {self._leaders[standing.term]} in term {standing.term}")
        if standing.leads:
            opened = standing.epoch not in self._epochs
            if self._epochs.setdefault(standing.epoch, node_id) != node_id:
                self.red("two epochs", f"{node_id} and {self._epochs[standing.epoch]} lead epoch {standing.epoch}")
            if opened:
                self.counts["epochs"] += 1
                self._see_epoch(node_id, standing, followed=followed)

    def _see_epoch(self, node_id: str, standing: Standing, *, followed: bool) -> None:
        """A new epoch stands on everything that was acknowledged. One that comes to light late has nothing to show.

        Its first batch may be `followed`, and an answer stand on it, before its own leader, whose disk is slow, leads.
        """
        if standing.epoch <= self._newest_epoch:
            return
        self._newest_epoch = standing.epoch
        if standing.head.sequence + followed <= self.acknowledged:
            self.red("lost", f"{node_id} opens {short(standing)}; {self.acknowledged} was acknowledged")

    def _see_head(self, node_id: str, standing: Standing) -> None:
        head = standing.head
        if self._hashes.setdefault(head.sequence, head.hash) != head.hash:
            known = self._hashes[head.sequence].hex()[:8]
            self.red("diverged", f"{node_id} has {head.hash.hex()[:8]} at {head.sequence}, others have {known}")

    def applied(self, applied: Applied, head: Head) -> None:
        """A replica has applied a batch; the first that does shows what it holds. `head` is that of its step."""
        if applied.sequence <= self._applied:
            return
        self._applied = applied.sequence
        self.counts["batches"] += 1
        self._see_clocks(head)
        for key, value in applied.puts:
            if key[:1] == keys.ASSIGNMENT:
                self._see_token(key)
            elif key[:1] == keys.SESSION:
                row = keys.decode_row(key, value)
                assert isinstance(row, Session)
                if row.ending:
                    self._see_end(key[1:].decode())
            elif key[:1] == keys.LEDGER:
                row = keys.decode_row(key, value)
                assert isinstance(row, LedgerEntry)
                self._see_remedy(row)
        for key in applied.deletes:
            if key[:1] == keys.SESSION:
                self._see_end(key[1:].decode())

    def _see_clocks(self, head: Head) -> None:
        """Neither clock goes back, and neither runs ahead of what has passed.

        After reboots log time is estimated by wall clocks, which may be wrong by so much at each.
        """
        passed_ms = self.elapsed_ms() * _FASTEST + 1
        log_ms_max = passed_ms + self.reboots * WALL_ERROR_MS
        before, self._clocks = self._clocks, (head.led_ms, head.log_ms)
        if head.led_ms < before[0] or head.log_ms < before[1]:
            self.red("clocks", f"they go from {before} back to {self._clocks}")
        if head.led_ms > passed_ms or (head.log_ms > log_ms_max and not self.walls_jumped):
            self.red("clocks", f"they are {self._clocks}, and only {self.elapsed_ms()} ms have passed")

    def _see_token(self, key: bytes) -> None:
        session_id, token, job_id, ordinal = keys.parse_assignment(key)
        if self._tokens.setdefault((job_id, ordinal), token) > token:
            newest = self._tokens[job_id, ordinal]
            self.red("token", f"{session_id} is given {job_id}/{ordinal} with {token} after {newest}")
        self._tokens[job_id, ordinal] = token
        self._granted.add((job_id, token))
        self.counts["assignments"] += 1

    def found(self, reader: Reader) -> None:
        """A process has found rows that perhaps nobody told of: who applied them ended, or all of them came here."""
        for key in reader.scan(keys.ASSIGNMENT):
            _, token, job_id, _ = keys.parse_assignment(key)
            self._granted.add((job_id, token))

    def _see_remedy(self, entry: LedgerEntry) -> None:
        """However many nodes believe that they lead, each trouble of an attempt is remedied once, and none is left out.

        What is done about an offer without an answer ends nothing, and what people decide is theirs.
        """
        self._remedies += 1
        if entry.serial != self._remedies:
            self.red("ledger", f"{entry.serial} follows {self._remedies - 1}: {entry}")
        if entry.remedy in (Remedy.RESEND, Remedy.WITHDRAW):
            return
        self.remedies_of[entry.job_id, entry.step_id, entry.part] += 1
        if entry.by is By.PERSON:
            return
        attempt = (entry.job_id, entry.ordinal, entry.part, entry.evidence.token)
        before = self._remedied.setdefault(attempt, entry)
        if before is not entry:
            self.red("remedied twice", f"{attempt}: {before} and {entry}")
        self.counts["remedies"] += 1
        self.counts[f"remedy {entry.trouble.name}"] += 1

    def started_attempt(self, job_id: str, step_id: str, token: int) -> None:
        """An agent begins to work. It was told to by a batch that all will ever know of."""
        if (job_id, token) not in self._granted:
            self.red("not granted", f"an agent starts {job_id}/{step_id} with {token}, which no batch has granted")

    def executed(self, job_id: str, step_id: str, part: Part, tokens: Collection[int]) -> None:
        """Under which tokens a part of a step took effect: one, and one more for each remedy at the most."""
        remedies = self.remedies_of[job_id, step_id, part]
        if len(tokens) > 1 + remedies:
            self.red("executed", f"{part.name} of {job_id}/{step_id} with {sorted(tokens)}, after {remedies} remedies")

    def _see_end(self, session_id: str) -> None:
        """The cluster holds a session to be over; its agent must have known that first."""
        if session_id in self._ending:
            return
        self._ending.add(session_id)
        self.counts["sessions_ended"] += 1
        if self.lease_runs(session_id):
            self.red("lease inequality", f"session {session_id} is ended while its agent counts on its lease")

    def recount(self, node_id: str, reader: Reader, *, led_ms: int) -> None:
        """Count the rows of a replica anew, and hold them against what they say of each other."""
        self.counts["recounts"] += 1
        found = invariants.violations(reader, led_ms=led_ms)
        if found:
            self.red("rows", f"{node_id}: {found[:3]}")

    # Answers.

    def answered(self, node_id: str, answer: Any, sequence: int, *, floor: int) -> None:
        """An answer leaves a node. `floor` is what was acknowledged when it was asked."""
        if isinstance(answer, Rejection) and answer.reason in SAYS_NOTHING:
            self.counts[answer.reason.name] += 1
            return
        if isinstance(answer, Rejection) and answer.reason is Reason.INTERNAL:
            self.red("internal", f"{node_id}: {answer.message}")
        if sequence < floor:
            self.red("stale", f"{node_id} answers {type(answer).__name__} at {sequence}; {floor} was known before")
        self.counts["acknowledged"] += 1
        if sequence > self.acknowledged:
            self.acknowledged = sequence
            self._known.append((self.elapsed_ms(), sequence))

    def looked(self, node_id: str, sequence: int, *, age_ms: int, error_ms: int) -> None:
        """A node answers from its rows as they are, and says how old they may be, as well as its clocks know.

        They hold everything that was acknowledged before.
        """
        self.counts["looks"] += 1
        before_ms = self.elapsed_ms() - age_ms * _FASTEST / _SLOWEST - error_ms - _ROUNDING_MS
        known = self._known[max(0, bisect_right(self._known, (int(before_ms), 1 << 62)) - 1)][1]
        if sequence < known:
            self.red("too old", f"{node_id} shows {sequence} as {age_ms} ms old; {known} was acknowledged before that")

    def leases(self, leased: list[Leased]) -> None:
        """Who may answer reads alone at this moment."""
        if len(leased) > 1:
            self.red("two read leases", str(leased))

    def red(self, kind: str, text: str) -> None:
        """Something is wrong."""
        raise ViolationError(kind, text)

    # The end.

    def at_rest(self, standings: dict[str, Standing]) -> None:
        """All is healed and done: the replicas are equal, and hold all that was acknowledged."""
        heads = {standing.head.hash for standing in standings.values()}
        if len(heads) != 1:
            self.red("not equal", str({node_id: short(one) for node_id, one in standings.items()}))
        term = max(standing.term for standing in standings.values())
        if term > TERMS_A_LEADER_MAX * len(self._leaders) + TERMS_MORE_MAX:
            self.red("terms", f"it is term {term}, after {len(self._leaders)} leaders")
        sequence = next(iter(standings.values())).head.sequence
        if sequence < self.acknowledged:
            self.red("lost", f"{self.acknowledged} was acknowledged, and the logbook ends at {sequence}")


def short(standing: Standing) -> str:
    """A standing on one line."""
    head = standing.head
    return f"term {standing.term} epoch {standing.epoch} at {head.sequence}/{head.hash.hex()[:8]}"


def step_row(reader: Reader, job_id: str, ordinal: int) -> rows.Step | None:
    """A step as a replica has it."""
    row = reader.get(keys.step(job_id, ordinal))
    assert row is None or isinstance(row, rows.Step)
    return row
