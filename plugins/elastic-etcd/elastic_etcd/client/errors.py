"""What can go wrong with etcd: the errors of this client, each of which says what was expected, what was found, and
what to do; and what it means that an attempt on one member failed, judged by gRPC's code and etcd's words.

These were verified against etcd 3.4 and 3.5, and gRPC 1.62 to 1.85.
"""

from __future__ import annotations

import enum
from typing import Any

MOST_RECEIVED = 64 * 1024 * 1024
"""Bytes of one message from a server: more than a thousand nodes and their state ever take, and no more memory than an
agent can spare."""
_LONGEST = 2000  # characters; gRPC names every address that it tried


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


class EtcdTooLarge(EtcdRefused):
    """The answer is larger than this client takes."""


class EtcdLeaseGone(EtcdRefused):
    """The lease does not exist: it expired or was revoked."""


class EtcdLeaseExists(EtcdRefused):
    """There is a lease with the id that was asked for."""


class Failure(Exception):
    """One attempt on one member that failed. `code` is gRPC's name of it, `details` its text, of which whoever answers
    there chose the words: they go to logs and terminals."""

    def __init__(self, code: str, details: str) -> None:
        details = "".join(it if it.isprintable() else "?" for it in details[:_LONGEST])
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details

    @classmethod
    def of(cls, error: Any) -> Failure:
        """From a grpc.RpcError."""
        return cls(error.code().name, error.details() or "")


class Judgement(enum.Enum):
    """What a failure means for the call."""

    ELSEWHERE = "another member may work; a write may have been carried out all the same"
    NOT_SENT = "another member may work; nothing was carried out"
    LOG_IN = "the server does not know our token; nothing was carried out"
    REFUSED = "every member would say the same; nothing was carried out"


_OF_THE_MEMBER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "CANCELLED"})
TOO_LARGE = "larger than max"
_NO_USER = "user name is empty"
_LOG_IN = ("invalid auth token", "revision of auth store is old", _NO_USER)
_NOT_SENT = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "etcdserver: no leader",  # said before it looks at a request that asks for one
    "etcdserver: not leader",
    "etcdserver: not capable",
    "not supported for learner",
    "etcdserver: too many requests",
)


def judge(failure: Failure) -> Judgement:
    """What the failure means for the call."""
    if failure.code == "UNAUTHENTICATED" or any(words in failure.details for words in _LOG_IN):
        return Judgement.LOG_IN  # by its words also where the code is PERMISSION_DENIED, as with older servers
    if failure.code == "UNIMPLEMENTED" or any(words in failure.details for words in _NOT_SENT):
        return Judgement.NOT_SENT  # unimplemented: whoever answers there is not etcd
    return Judgement.ELSEWHERE if failure.code in _OF_THE_MEMBER else Judgement.REFUSED


_OTHER_NAMES = "its certificate is for other names; use one of these as the endpoint"
_NOT_OURS = "it refuses our certificate, or wants one and got none; give one that it trusts (ssl_cert, ssl_cert_key)"
_NO_NAME = "nobody knows the name; correct the endpoint"
_NO_TLS = "it does not take part in TLS; it may speak plain text (protocol http), or hang"
_TLS = "it hung up when it got plain text; it may expect TLS (use protocol https)"
_FOREIGN = "what listens there does not speak as etcd does; correct the endpoint, or use protocol https if it wants TLS"

_MISTRUST = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of an authority that we trust; give its authority (ca_cert)"),
    ("Hostname Verification Check failed", _OTHER_NAMES),
    ("is not in peer certificate", _OTHER_NAMES),
    ("ALERT", _NOT_OURS),
    ("Unwrap failed", _NOT_OURS),  # so with TLS 1.3, where a server refuses when the handshake is over
)

_REASONS = (
    *_MISTRUST,
    ("tcp handshaker shutdown", ""),
    ("FD Shutdown", ""),  # older gRPC, which has given up connecting and has said why before
    ("Connection refused", "nothing listens there (connection refused); start etcd, or correct the endpoint"),
    ("errors resolving", _NO_NAME),
    ("DNS resolution failed", _NO_NAME),
    ("Handshake read failed", _NO_TLS),
    ("WRONG_VERSION", _NO_TLS),
    ("before receiving SETTINGS", "it accepts connections and does not answer"),
    ("http1.x server", _FOREIGN),
    ("Failed parsing HTTP/2", _FOREIGN),
    ("Expected SETTINGS frame", _FOREIGN),
    ("etcdserver: no leader", "it is up, and the cluster has no leader: more than half of its members must run"),
)


def fault(failure: Failure, over_tls: bool) -> str:
    """For people: what is wrong with a member; empty if it says nothing."""
    known = next((reason for words, reason in _REASONS if words in failure.details), None)
    if known is not None:
        return known
    if failure.code == "DEADLINE_EXCEEDED":
        return "it did not answer in time"
    if failure.code == "UNIMPLEMENTED":
        return _FOREIGN
    if "failed to connect" in failure.details and "Socket closed" in failure.details:
        return _NO_TLS if over_tls else _TLS
    return f"{failure.details} ({failure.code})"


def is_mistrust(failure: Failure) -> bool:
    """Whether one side does not accept the certificate of the other."""
    return "failed to connect" in failure.details and any(words in failure.details for words, _ in _MISTRUST)


def refusal(failure: Failure, where: str) -> EtcdRefused:
    """The error to raise for what every member would refuse."""
    said = f"found: {failure.details or failure.code}"
    for words, kind, told in _REFUSALS:
        if words in failure.details:
            return kind(told.format(where=where, said=said))
    if failure.code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return EtcdDenied(f"expected etcd at {where} to let us in, {said}; check the user, the password and its roles")
    return EtcdRefused(f"expected etcd at {where} to carry out a request, {said} ({failure.code})")


_REFUSALS: tuple[tuple[str, type[EtcdRefused], str], ...] = (
    (
        TOO_LARGE,
        EtcdTooLarge,
        f"expected answers of {MOST_RECEIVED >> 20} MiB at most from etcd {{where}}, {{said}}: too much is stored "
        "under our keys; etcdctl get --prefix --keys-only PREFIX shows what",
    ),
    (
        "permission denied",
        EtcdDenied,
        "expected permission to read and write our keys at etcd {where}, {said}; let a role of the user read and write "
        "the prefix: etcdctl role grant-permission ROLE readwrite --prefix PREFIX",
    ),
    (
        "authentication failed",
        EtcdDenied,
        "expected the user's password to be that of etcd {where}, {said}; correct user or password",
    ),
    (_NO_USER, EtcdDenied, "etcd {where} expects user and password and got none, {said}; give both"),
    (
        "database space exceeded",
        EtcdFull,
        "expected room for a write at etcd {where}, {said}: its quota is used up, and nothing can be written; compact "
        "and defragment it, or raise --quota-backend-bytes; then lift the alarm (etcdctl alarm disarm)",
    ),
    (
        "requested lease not found",
        EtcdLeaseGone,
        "expected a live lease at etcd {where}, {said}: it expired or was revoked; take a new one",
    ),
    ("lease already exists", EtcdLeaseExists, "expected a lease that is new to etcd {where}, {said}"),
)
