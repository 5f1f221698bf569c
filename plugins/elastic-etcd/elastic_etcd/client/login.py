"""User and password, and the token that etcd issues for them."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import Failure
from elastic_etcd.client.members import HAS_LEADER
from elastic_etcd.client.messages import rpc

if TYPE_CHECKING:
    from elastic_core.plugin import Duration
    from elastic_etcd.client.members import Member, Metadata

LOGGING_IN: Duration = 2.5
"""The minimum time limit for a login. It is high because checking a password is slow, and the server checks only one at
a time."""
NOT_ENABLED = "authentication is not enabled"
_TOKEN = re.compile(r"[!-~]{1,8192}")  # text that can be sent as metadata


@dataclass(frozen=True)
class Login:
    """The user and the password, which repr() does not show."""

    user: str
    password: str = field(repr=False)


class Tokens:
    """The token in use. If a new one is needed, one thread logs in, and other threads wait. `at_hand` is the metadata,
    or None if a login is needed first."""

    def __init__(self, login: Login | None) -> None:
        self.at_hand: Metadata | None = HAS_LEADER if login is None else None
        self._login = login
        self._logging_in = threading.Lock()

    def metadata(self, member: Member, patience: Duration = LOGGING_IN) -> Metadata:
        """Return metadata for a call on `member`. The member then rejects the call unless it knows a leader and our
        token. If there is no token, log in within `patience` seconds. Raises Failure if the login failed, and
        EtcdClosed."""
        if self._login is None:
            return HAS_LEADER
        if not self._logging_in.acquire(timeout=patience):
            raise Failure("DEADLINE_EXCEEDED", "logging in took too long")
        try:
            known = self.at_hand
            if known is None:
                known = self.at_hand = _log_in(member, self._login, patience)
            return known
        finally:
            self._logging_in.release()

    def refused(self, metadata: Metadata) -> bool:
        """Record that the server does not know this token. Returns whether the next `metadata` will log in again."""
        if self._login is None:
            return False
        if self.at_hand == metadata:  # otherwise another thread has already replaced it
            self.at_hand = None
        return True


def _log_in(member: Member, login: Login, patience: Duration) -> Metadata:
    request = rpc().authenticate.filled(name=login.user, password=login.password)
    try:
        answer = member.ask(rpc().authenticate, request, patience, HAS_LEADER)
    except Failure as failure:
        if NOT_ENABLED in failure.details:
            return HAS_LEADER  # as in etcd's own clients: users may set a password before the cluster requires it
        # The traceback's frames hold the request, so a tool that prints local variables would print the password.
        raise failure.with_traceback(None) from None
    finally:
        del request
    if not _TOKEN.fullmatch(answer.token):
        raise Failure("INTERNAL", "it sent an invalid token")
    return (*HAS_LEADER, ("token", answer.token))
