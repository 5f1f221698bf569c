"""What can go wrong with etcd. Each error says what was expected, what was found, and what to do."""

from __future__ import annotations


class EtcdError(Exception):
    """Base of all that this client raises."""


class EtcdUnreachable(EtcdError):
    """No member gave an answer in time; the call may be repeated. `landed`: a write may have been carried out."""

    def __init__(self, message: str, landed: bool = False) -> None:
        super().__init__(message)
        self.landed = landed


class EtcdClosed(EtcdError):
    """The client was closed on this side."""


class EtcdRefused(EtcdError):
    """The server understood and refuses, or one side does not trust the other's certificate: repeating it is of no use
    until somebody changes something. The base of:"""


class EtcdDenied(EtcdRefused):
    """Wrong user or password, or no permission on the key."""


class EtcdFull(EtcdRefused):
    """The quota is used up (alarm NOSPACE): nothing can be written."""


class EtcdCompacted(EtcdRefused):
    """The revision that was asked for is forgotten. `revision`: the oldest that is known."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class EtcdLeaseGone(EtcdRefused):
    """The lease does not exist: it expired or was revoked."""


class EtcdLeaseExists(EtcdRefused):
    """There is a lease with the id that was asked for."""
