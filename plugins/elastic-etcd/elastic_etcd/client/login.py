"""User and password, and the token that etcd gives for them."""

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
"""At least so long may it take to log in: the server does costly work on passwords, one after the other."""
NOT_ENABLED = "authentication is not enabled"
_TOKEN = re.compile(r"[!-~]{1,8192}")
"""What can be sent as metadata."""


@dataclass(frozen=True)
class Login:
    """Who we are. The password is shown by nothing."""

    user: str
    password: str = field(repr=False)


class Tokens:
    """The token in use; made by logging in when it is first needed and whenever the server has forgotten it. Used from
    several threads: one logs in, the others wait for it.

    `at_hand`: what `metadata` gives at once, without logging in; None if it would have to.
    """

    def __init__(self, login: Login | None) -> None:
        self.at_hand: Metadata | None = HAS_LEADER if login is None else None
        self._login = login
        self._logging_in = threading.Lock()
        self._changing = threading.Lock()

    def metadata(self, member: Member, patience: Duration = LOGGING_IN) -> Metadata:
        """What to send with a call on `member`: that it has to know a leader, and our token, for which we log in there
        if we have none. Waits for `patience` seconds at most.

        Raises:
            Failure: logging in has failed, as any call may.
            EtcdClosed: the client was closed.
        """
        if self._login is None:
            return HAS_LEADER
        if not self._logging_in.acquire(timeout=patience):
            raise Failure("DEADLINE_EXCEEDED", "logging in takes too long")
        try:
            known = self.at_hand
            if known is None:
                known = self.at_hand = _log_in(member, self._login, patience)
            return known
        finally:
            self._logging_in.release()

    def refused(self, metadata: Metadata) -> bool:
        """The server does not know the token in there (any more). Whether logging in again may help: then the next
        `metadata` does."""
        if self._login is None:
            return False
        with self._changing:
            if self.at_hand == metadata:  # else another thread has a new one already
                self.at_hand = None
        return True


def _log_in(member: Member, login: Login, patience: Duration) -> Metadata:
    request = rpc().authenticate.filled(name=login.user, password=login.password)
    try:
        answer = member.ask(rpc().authenticate, request, patience, HAS_LEADER)
    except Failure as failure:
        if NOT_ENABLED in failure.details:
            return HAS_LEADER  # as etcd's own clients do: passwords may be given before they are required
        # The frames that it came through hold the request; what shows the variables of frames would show the password.
        raise failure.with_traceback(None) from None
    finally:
        del request
    if not _TOKEN.fullmatch(answer.token):
        raise Failure("INTERNAL", "it gave a token that cannot be one")
    return (*HAS_LEADER, ("token", answer.token))
