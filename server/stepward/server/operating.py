"""What operators do to a node by a call: hand its leadership on, or let it go on without nodes that are gone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.api import validate
from stepward.server.core.rejections import Reason, Refused, Rejection, Violation, refuse
from stepward.server.logbook.outbox import Recover, Recovered, Transfer, Transferred
from stepward.server.peers.passing import Unreached, pass_on
from stepward.v1 import cluster_service_pb2, cluster_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepward.server.core.limits import Limits
    from stepward.server.logbook.identity import Identity
    from stepward.server.peers.channels import PeerChannels
    from stepward.server.shard import Shard

# How long the node that leads may take, to which a call was passed on: a transfer ends within 4 s, and whoever asks
# waits 10 s, of which some must be left to tell him.
PASSED_ON_S_MAX: Final = 6.0
# In the metadata of such a call, so that it is passed on once.
PASSED_ON: Final = "stepward-passed-on"

_log = observe.logger("operating")


class Operating:
    """Acts on this node's replica, or asks the node that leads."""

    def __init__(
        self,
        identity: Identity,
        shard: Shard,
        channels: PeerChannels,
        *,
        reached: Callable[[], Sequence[str]],
        limits: Limits,
    ) -> None:
        """`reached`: the other nodes to which a stream stands."""
        self._identity = identity
        self._shard = shard
        self._channels = channels
        self._reached = reached
        self._limits = limits

    async def transfer(self, target_id: str, *, passed_on: bool) -> Transferred:
        """Hand leadership to a node; empty: to the one that is most up to date. May be repeated.

        Raises:
            Refused: NODE_STATE when the target cannot lead; NO_LEADER when nobody does.
        """
        members = self._identity.members
        if target_id and target_id not in members:
            raise refuse(Reason.INVALID_ARGUMENT, f"node_id is {target_id!r}; it must be one of {', '.join(members)}")
        if target_id == self._identity.node_id == self._shard.standing.leader_id:
            # Also before its epoch is open: others know it as their leader by then, and send their callers here.
            return Transferred(target_id, self._shard.standing.term)
        if not self._identity.peers:
            raise refuse(Reason.NODE_STATE, f"{self._identity.node_id} is the only node, and leads")
        if self._shard.leads:
            # Told at once: it would be found out after the time that a transfer may take, by everybody waiting.
            self._require_quorum()
            self._require_reached(target_id)
        answer = await self._shard.ask(partial(Transfer, target_id=target_id))
        if isinstance(answer, Transferred):
            return self._handed_on(answer, target_id)
        assert isinstance(answer, Rejection), answer
        if answer.reason is not Reason.NOT_LEADER or passed_on:
            raise Refused(answer)
        return await self._ask_leader(answer.metadata.get("leader_id", ""), target_id)

    def _handed_on(self, outcome: Transferred, target_id: str) -> Transferred:
        if outcome.leader_id == self._identity.node_id:
            target = target_id or "the node that was most up to date"
            text = f"{outcome.leader_id} still leads: {target} did not take over in time; see how it is, then try again"
            raise refuse(Reason.NODE_STATE, text, node_id=outcome.leader_id)
        return outcome

    def _require_quorum(self) -> None:
        """See that somebody can lead.

        Raises:
            Refused: NODE_STATE.
        """
        us, members, reached = self._identity.node_id, self._identity.members, self._reached()
        needed = len(members) // 2 + 1
        if len(reached) + 1 >= needed:
            return
        away = ", ".join(sorted(set(self._identity.peers) - set(reached)))
        text = (
            f"there is no quorum: {us} reaches {', '.join(reached) or 'no other node'}, and {needed} of "
            f"{len(members)} nodes must reach each other for one to lead; start {away}, or mend the network between "
            "them"
        )
        raise refuse(Reason.NODE_STATE, text, node_id=us)

    def _require_reached(self, target_id: str) -> None:
        """See that the leader, which is this node, can hand anything to the target.

        Raises:
            Refused: NODE_STATE.
        """
        if target_id and target_id not in self._reached():
            text = f"{target_id} is not reached by {self._identity.node_id}, which leads and goes on; start {target_id}"
            raise refuse(Reason.NODE_STATE, text, node_id=target_id)

    async def _ask_leader(self, leader_id: str, target_id: str) -> Transferred:
        if leader_id not in self._reached():
            self._require_quorum()
            who = f"{leader_id}, which led, is not reached any more" if leader_id else "this node knows no leader"
            rejection = Rejection(Reason.NO_LEADER, f"{who}; an election takes about a second", retry_after_ms=200)
            raise Refused(rejection)
        if leader_id == target_id:
            return Transferred(leader_id, self._shard.standing.term)
        stub = cluster_service_pb2_grpc.ClusterServiceStub(self._channels.to(leader_id))
        call = partial(stub.TransferLeader, metadata=((PASSED_ON, "1"),))
        request = cluster_service_pb2.TransferLeaderRequest(node_id=target_id)
        try:
            response = await pass_on(call, request, timeout_s=PASSED_ON_S_MAX)
        except Unreached as error:
            text = f"{leader_id}, which leads, did not answer: {error}; ask for the status, then try again"
            raise Refused(Rejection(Reason.NO_LEADER, text, retry_after_ms=200)) from None
        return Transferred(response.node_id, response.term)

    async def recover(self, gone_ids: Sequence[str], *, reason: str, actor: str) -> str:
        """Let this node take part without having heard of others; what may have been lost, for a person.

        Raises:
            Refused: INVALID_ARGUMENT; NODE_STATE when it does not wait for one that is named.
        """
        found = validate.verb(reason, actor, self._limits)
        if not reason.strip():
            found += (Violation("reason", "is empty; say why what the others have promised does not count any more"),)
        validate.require(found)
        peers = self._identity.peers
        if not peers:
            raise refuse(Reason.NODE_STATE, f"{self._identity.node_id} is the only node, and waits for no other")
        unknown = sorted(set(gone_ids) - set(peers))
        if unknown or not gone_ids:
            named = ", ".join(unknown) or "nobody"
            text = f"gone_node_ids names {named}; it must name others of this cluster: {', '.join(peers)}"
            raise refuse(Reason.INVALID_ARGUMENT, text)
        answer = await self._shard.ask(partial(Recover, gone_ids=frozenset(gone_ids)))
        if not isinstance(answer, Recovered):
            assert isinstance(answer, Rejection), answer
            raise Refused(answer)
        gone = sorted(gone_ids)
        _log.warning("node_recovered", gone=gone, reason=reason, actor=actor)
        both = " and ".join((self._identity.node_id, *gone))
        return f"what only {both} had acknowledged is lost; compare what is missing with the services that did the work"
