"""Judgements about names, addresses, connections and ports. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.operate.doctor.finding import Check, Finding, Level, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_core.clock import Duration
    from elastic_core.operate.doctor.network import Address, Connected, Resolved, Reversed

SLOW: Duration = 1.0
"""Seconds from which on a look-up is slow."""

_IN_DNS = "put it into DNS or into /etc/hosts on every node, or write an address instead of the name"


def judged_name(found: Resolved, nodes: int) -> Finding:
    """`nodes`: the most that the job may have."""
    if found.problem:
        return fault(Check.NAME, f"{found.place.host} cannot be resolved: {found.problem}", _IN_DNS)
    told = f"{found.place.host} is {', '.join(_shown(address) for address in found.addresses)}"
    if found.seconds is not None and found.seconds >= SLOW:
        advice = f"ask the nameservers of /etc/resolv.conf why; or {_IN_DNS}"
        return warning(Check.NAME, f"{told}; it took {found.seconds:.1f} s", advice)
    if nodes > 1:
        return _for_several(found, told)
    return ok(Check.NAME, told)


def _for_several(found: Resolved, told: str) -> Finding:
    if found.place.is_loopback:
        advice = "no other machine reaches it: write a name or an address that all nodes reach"
        return warning(Check.NAME, told, advice)
    if all(address.is_loopback for address in found.addresses):
        advice = (
            f"right on the machine of that name only; elsewhere getent hosts {found.place.host} must show its address"
        )
        return note(Check.NAME, f"{told}: loopback", advice)
    if any(a.local for a in found.addresses) and any(not a.local for a in found.addresses):
        advice = "write a name or an address of one machine: each of them could host the store"
        return warning(Check.NAME, f"{told}: addresses of several machines", advice)
    families = [address.family for address in found.addresses]
    if len(families) > len(set(families)):
        return note(Check.NAME, f"{told}: several addresses", "well, if they are of one machine, or of one cluster")
    return ok(Check.NAME, told)


def _shown(address: Address) -> str:
    return f"{address.host} (this machine)" if address.local else address.host


def judged_reverse(found: Reversed, whose: str) -> Finding:
    """`whose`: the address, in words. A missing name does no harm as long as its absence is told quickly."""
    told = f"{whose}, {found.address}, backwards: {found.name or 'no name'}"
    if found.seconds is not None and found.seconds < SLOW:
        return ok(Check.REVERSE_LOOKUP, f"{told}, in {_milliseconds(found.seconds)}")
    took = "no answer in time" if found.seconds is None else f"after {found.seconds:.1f} s"
    name = found.name or "NAME"
    return warning(
        Check.REVERSE_LOOKUP,
        f"{told}, {took}; torch's store waits for that at every connection",
        f"add the line '{found.address} {name}' to /etc/hosts where the store is hosted, or set "
        "RES_OPTIONS='timeout:1 attempts:1' for elastic run",
    )


def judged_address(
    advertised: str | None, addresses: Sequence[Address], is_given: bool, nodes: int, meets_at_loopback: bool
) -> Finding:
    """The address that this node would tell the others.

    Args:
        advertised: as text; None if it is not known.
        addresses: what it resolves to here.
        is_given: by --local-addr.
        meets_at_loopback: the endpoint is of this machine only, so that an address of loopback does no harm.
    """
    if advertised is None:
        return warning(
            Check.ADDRESS,
            "no route to the endpoint, so that this node would tell its host name",
            "give --local-addr an address of this machine that the other nodes reach",
        )
    told = f"this node tells the others {advertised}"
    if not addresses:
        return fault(Check.ADDRESS, f"{told}, which cannot be resolved here", "correct --local-addr, or leave it out")
    if not any(address.local for address in addresses):
        advice = "well, if it is translated to this machine; else correct --local-addr (ip -brief address lists them)"
        return warning(Check.ADDRESS, f"{told}, which is no address of this machine", advice)
    if nodes > 1 and not meets_at_loopback and all(address.is_loopback for address in addresses):
        advice = "give --local-addr an address that the other nodes reach (ip -brief address lists them)"
        return warning(Check.ADDRESS, f"{told}, where no other machine reaches it", advice)
    return ok(Check.ADDRESS, f"{told}{', as --local-addr says' if is_given else ''}")


def judged_connections(found: Sequence[Connected], is_hosted: bool) -> Iterator[Finding]:
    """`is_hosted`: one of the nodes hosts the store, so that there is none before the job begins."""
    someone = any(not item.problem for item in found)
    for item in found:
        if not item.problem:
            yield ok(Check.CONNECTION, f"{item.address} accepts, after {_milliseconds(item.seconds)}")
        elif item.refused:
            yield _nobody_there(item, someone, is_hosted)
        else:
            yield _out_of_reach(item, someone)


def _nobody_there(item: Connected, someone: bool, is_hosted: bool) -> Finding:
    told = f"nothing listens at {item.address} yet"
    if someone:
        return note(Check.CONNECTION, told)
    if not is_hosted:
        return warning(Check.CONNECTION, told, "start the service there; it must be up before the job begins")
    if item.address.local:
        return note(
            Check.CONNECTION, told, "this machine would host the store: start elastic run or elastic serve here"
        )
    return note(Check.CONNECTION, told, "the machine answers; start elastic run, or elastic serve, there")


def _out_of_reach(item: Connected, someone: bool) -> Finding:
    told = f"{item.address} is out of reach: {item.problem}"
    advice = "check that the machine is up, the address is its own, and no firewall or security group drops the port"
    return Finding(Level.NOTE if someone else Level.WARNING, Check.CONNECTION, told, advice)


def judged_port(check: Check, what: str, port: int, problem: str) -> Finding:
    """Whether something of ours can serve. `problem`: why not; empty if it can."""
    if not problem:
        return ok(check, f"{what}: port {port} is free here")
    ports = " (ports below 1024 are root's)" if 0 < port < 1024 else ""
    return fault(
        check,
        f"{what}: port {port} cannot be had here: {problem}",
        f"choose another{ports}, or end what listens there: ss -ltnp shows it",
    )


def judged_store_absence(is_expected: bool, where: str, is_hosted: bool) -> Finding:
    """Nobody answered at any address of the endpoint."""
    start = f"elastic serve --rdzv-endpoint {where}" if is_hosted else "the service"
    if is_expected:
        return fault(
            Check.STORE, f"no store can be reached at {where}", f"start {start}; see the lines above for the way"
        )
    told = f"there is no store at {where} yet, so nothing was asked of it"
    if is_hosted:
        return note(Check.STORE, told, "the first elastic run on its machine starts it")
    return warning(Check.STORE, told, f"start {start} before the job")


def _milliseconds(seconds: Duration) -> str:
    return f"{seconds * 1000:.1f} ms"
