"""User and password, and the token that etcd gives for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_etcd.client.failures import Failure
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from elastic_core.clock import Duration
    from elastic_etcd.client.member import Member

Metadata = tuple[tuple[str, str], ...]

HAS_LEADER: Metadata = (("hasleader", "true"),)
"""A member that knows no leader then refuses at once, instead of keeping us waiting."""

NOT_ENABLED = "authentication is not enabled"


@dataclass(frozen=True)
class Login:
    """Who we are. The password is shown by nothing."""

    user: str
    password: str = field(repr=False)


class Tokens:
    """The token in use; made by logging in when it is first needed and whenever the server has forgotten it. Used from
    several threads: one logs in, the others wait for it."""

    def __init__(self, login: Login | None) -> None:
        self._login = login
        self._metadata: Metadata | None = None
        self._logging_in = threading.Lock()
        self._changing = threading.Lock()

    @property
    def at_hand(self) -> Metadata | None:
        """See `Members.metadata_at_hand`."""
        return HAS_LEADER if self._login is None else self._metadata

    def metadata(self, member: Member, patience: Duration) -> Metadata:
        """See `Members.metadata`."""
        if self._login is None:
            return HAS_LEADER
        known = self._metadata
        if known is not None:
            return known
        if not self._logging_in.acquire(timeout=patience):
            raise Failure("DEADLINE_EXCEEDED", "logging in takes too long")
        try:
            known = self._metadata
            if known is None:
                known = self._metadata = _log_in(member, self._login, patience)
            return known
        finally:
            self._logging_in.release()

    def refused(self, metadata: Metadata) -> bool:
        """See `Members.refused`."""
        if self._login is None:
            return False
        with self._changing:
            if self._metadata == metadata:  # else another thread has a new one already
                self._metadata = None
        return True


def _log_in(member: Member, login: Login, patience: Duration) -> Metadata:
    request = rpc().AuthenticateRequest(name=login.user, password=login.password)
    try:
        answer = member.ask(rpc().authenticate, request, patience, HAS_LEADER)
    except Failure as failure:
        if NOT_ENABLED in failure.details:
            return HAS_LEADER  # as etcd's own clients do: passwords may be given before they are required
        raise
    return (*HAS_LEADER, ("token", answer.token))
