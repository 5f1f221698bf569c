"""Handover: the store's host leaves, and another node serves the store from then on."""

from __future__ import annotations

import secrets
import socket
from datetime import timedelta

import pytest
from elastic_c10d.create import open_backend

from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.versions import KEPT, Keys

LONG = 60.0


@pytest.fixture(params=[False, True], ids=["plain", "signed"])
def seal(request):
    secret = secrets.token_bytes(32)
    return lambda: HmacSeal("job", [secret]) if request.param else None


@pytest.fixture
def connected_nodes(node, seal, free_port):
    """`connected_nodes(n)`: the endpoint, and n nodes that have met there, the host first."""

    def made(count, endpoint=None):
        endpoint = endpoint or f"127.0.0.1:{free_port()}"
        nodes = [node(endpoint, seal()) for _ in range(count)]
        for name, backend in zip("abcd", nodes, strict=False):
            backend.announce(name, name.encode())
        assert [backend.hosts_store for backend in nodes] == [True, *[False] * (count - 1)]
        return endpoint, nodes

    return made


@pytest.fixture
def hand_over(background):
    """`hand_over(host, own, heirs, *others)`: the host leaves while the other nodes wait for a new state. Returns the
    state that each of them then reads."""

    def moved(host, own, heirs, *others, timeout=LONG):
        tokens = [other.get_state()[1] for other in others]
        waiting = [
            background(lambda other=other, token=token: other.wait_for_state(token, LONG) and other.get_state())
            for other, token in zip(others, tokens, strict=True)
        ]
        host.withdraw(own)
        assert host.hand_over(heirs, timeout)
        assert not host.hosts_store
        return [waits.result() for waits in waiting]

    return moved


def heir_of(*nodes):
    """The node that serves the store now, followed by the other nodes. A slow first heir may have been skipped."""
    hosts = [backend for backend in nodes if backend.hosts_store]
    assert len(hosts) == 1
    return (*hosts, *(backend for backend in nodes if backend not in hosts))


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def keys(backend):
    return sorted(seen.key for seen in backend.roster())


def test_heir_holds_the_state_and_other_nodes_follow(connected_nodes, hand_over):
    _, (host, *others) = connected_nodes(3)
    _, old, _ = others[-1].set_state(b"state")
    found = hand_over(host, "a", ["b", "c"], *others)
    assert [state for state, _ in found] == [b"state"] * 2
    heir, other = heir_of(*others)
    host.close()
    assert keys(other) == keys(heir) == ["b", "c"]
    b, c = others
    assert c.beat("c", leading=True, look=True) == b.beat("b", leading=False, look=True) == 1
    standing, token, written = heir.set_state(b"late", old)
    assert (standing, written) == (b"state", False)
    _, token, written = other.set_state(b"new", token)
    assert written
    assert heir.get_state() == (b"new", token)


def test_handover_loses_no_concurrent_write(connected_nodes, background):
    """A write during the handover reaches the new store, or is refused."""
    _, (host, heir, other) = connected_nodes(3)
    _, token, _ = other.set_state(b"0")
    host.withdraw("a")
    handover = background(lambda: host.hand_over(["b"], LONG))
    accepted, number = b"0", 0
    while not handover.over(0):
        number += 1
        found, token, written = other.set_state(b"%d" % number, token)
        assert found == (b"%d" % number if written else accepted)
        accepted = found
        assert heir.get_state()[0] == accepted
    assert handover.result()
    host.close()
    assert other.get_state()[0] == heir.get_state()[0] == accepted
    assert [heir.hosts_store, other.hosts_store].count(True) == 1


def test_waits_continue_in_the_new_store(connected_nodes, hand_over, background):
    _, (host, heir, other) = connected_nodes(3)
    other.set_state(b"state")
    other.roster()
    waiting = background(lambda: other.wait_for_roster(LONG))  # for a change that happens only in the new store
    _, (_, token) = hand_over(host, "a", ["b", "c"], heir, other)
    host.close()
    waiting.result()
    waiting = background(lambda: other.wait_for_state(token, LONG))
    assert heir.set_state(b"next", heir.get_state()[1])[2]
    assert waiting.result() is True
    other.roster()
    waiting = background(lambda: other.wait_for_roster(LONG))
    heir.announce("d", b"d")
    assert waiting.result() is True


def test_next_heir_hosts_if_the_first_is_dead(connected_nodes, hand_over):
    """No node has noticed the death yet."""
    _, (host, dead, heir) = connected_nodes(3)
    heir.set_state(b"state")
    dead.close()
    assert hand_over(host, "a", ["b", "c"], heir, timeout=5.0)[0][0] == b"state"
    assert heir.hosts_store


def test_store_stays_if_no_other_node_may_host(connected_nodes, node, seal, beats):
    endpoint, (host,) = connected_nodes(1)
    other = node(endpoint, seal(), is_host=False)
    other.announce("b", b"b")
    other.set_state(b"state")
    assert not host.hand_over(["b"], 0.5)
    assert host.hosts_store
    other.announce("b", b"again")
    state, token = host.get_state()
    assert state == b"state"
    assert other.set_state(b"again", token)[2]
    assert host.get_state()[0] == b"again"
    beats(other, "b", b"again")
    assert b"again" in [seen.entry for seen in host.roster()]


def test_endpoint_still_redirects_after_a_failed_handover(connected_nodes, node, seal, hand_over, eventually):
    endpoint, (host, heir) = connected_nodes(2)
    heir.set_state(b"state")
    hand_over(host, "a", ["b"], heir)
    heir.withdraw("b")
    assert not heir.hand_over([], 0.5)  # without an heir
    assert heir.hosts_store
    host.close()
    back = node(endpoint, seal())
    back.announce("e", b"back")
    eventually(lambda: (back.get_state() or (b"",))[0] == b"state")  # it may host a store that becomes a redirect
    assert keys(heir) == ["e"]
    assert not back.hosts_store


def test_last_node_does_not_hand_over(connected_nodes):
    _, (host,) = connected_nodes(1)
    host.withdraw("a")
    assert not host.hand_over([], LONG)
    assert host.hosts_store


def test_newcomers_and_commands_find_moved_store_at_endpoint(connected_nodes, node, seal, hand_over, eventually):
    endpoint, (host, heir) = connected_nodes(2)
    port = int(endpoint.rpartition(":")[2])
    heir.set_state(b"state")
    hand_over(host, "a", ["b"], heir)
    assert node(endpoint, seal()).get_state()[0] == b"state"  # the old server still runs
    host.close()
    eventually(lambda: listens(port))  # the heir's, once the port is free
    late = node(endpoint, seal())
    late.announce("d", b"d")
    eventually(lambda: (late.get_state() or (b"",))[0] == b"state")  # its redirect follows shortly
    assert keys(heir) == ["b", "d"]
    assert not late.hosts_store
    looking = open_backend(RendezvousParameters("c10d", endpoint, "job", 1, 1, join_timeout=20.0))
    if (signs := seal()) is not None:
        looking.sign_with(signs)
    assert keys(looking) == ["b", "d"]  # even before it has read the state
    assert looking.get_state()[0] == b"state"
    looking.close()


def test_moved_store_that_is_started_again_redirects_newcomers(
    connected_nodes, node, seal, hand_over, eventually, fails
):
    """Newcomers once formed a second group at the endpoint."""
    endpoint, (host, *others) = connected_nodes(3)
    others[0].set_state(b"state")
    hand_over(host, "a", ["b", "c"], *others)
    host.close()
    heir, other = heir_of(*others)
    heir.close()
    eventually(lambda: not fails(other.get_state))
    assert other.hosts_store
    assert other.set_state(b"given back")[2]
    newcomer = node(endpoint, seal())
    eventually(lambda: newcomer.get_state() is not None)
    assert newcomer.get_state()[0] == b"given back"


def test_redirect_that_points_to_its_own_store_is_ignored(connected_nodes, hand_over, eventually, seal):
    """An attacker copies the signed redirect from the endpoint into the store that it points to."""
    endpoint, (host, *others) = connected_nodes(3)
    others[-1].set_state(b"state")
    hand_over(host, "a", ["b"], *others)
    heir, other = heir_of(*others)
    host.close()
    old = client(int(endpoint.rpartition(":")[2]))
    eventually(lambda: old.check([Keys("job").id]))
    keys_there = Keys("job", old.get(Keys("job").id).decode())
    eventually(lambda: old.check([keys_there.state(1)]))
    new = client(int(old.get(keys_there.moved).rpartition(b":")[2]))
    for key in (keys_there.moved, keys_there.state(1), Keys("job").id):
        new.set(key, old.get(key))
    assert other.set_state(b"", other.get_state()[1]) is None  # the new epoch has no state
    _, token, written = other.set_state(b"later")
    assert written
    heir.roster()
    assert heir.get_state() == (b"later", token)
    assert heir.hosts_store


@pytest.mark.parametrize("place", ["", "the same"])
def test_forged_redirect_does_not_move_the_store(connected_nodes, place):
    """The forged writes announce a move without a target, or to the same address. With a secret, they are unsigned."""
    endpoint, (host, other) = connected_nodes(2)
    host.set_state(b"state")
    store = client(int(endpoint.rpartition(":")[2]))
    keys_there = Keys("job", store.get(Keys("job").id).decode())
    if place:
        store.set(keys_there.moved, endpoint)
    store.set(keys_there.state(2), "(moving)[]")
    _token(host)
    _, token, written = other.set_state(b"later", _token(other))
    assert written
    assert host.get_state() == (b"later", token)


def _token(backend):
    """The token of the stored state, even if it is foreign."""
    try:
        found = backend.get_state()
    except ForeignStateError as error:
        return error.token
    return None if found is None else found[1]


def client(port):
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20), wait_for_workers=False)


def test_store_is_handed_over_twice(connected_nodes, hand_over):
    _, (host, *others) = connected_nodes(3)
    others[-1].set_state(b"state")
    hand_over(host, "a", ["b", "c"], *others)
    host.close()
    heir, last = heir_of(*others)
    name, next_name = ("b", "c") if heir is others[0] else ("c", "b")
    hand_over(heir, name, [next_name], last)
    heir.close()
    assert last.hosts_store
    assert last.get_state()[0] == b"state"
    assert keys(last) == [next_name]


def test_node_finds_the_store_at_the_second_listed_host(connected_nodes, node, seal, hand_over, free_port):
    """A new store starts at the first host, but a store at the second host is used even if the first is free."""
    first, second = free_port(), free_port()
    endpoint = f"127.0.0.1:{first},127.0.0.1:{second}"
    _, (host, other) = connected_nodes(2, endpoint)
    assert (listens(first), listens(second)) == (True, False)
    other.set_state(b"state")
    host.close()
    other.close()
    served = node(f"127.0.0.1:{second}", seal())
    served.set_state(b"elsewhere")
    late = node(endpoint, seal())
    assert late.get_state()[0] == b"elsewhere"
    assert not late.hosts_store
    assert not listens(first)


@pytest.fixture
def split_stores(connected_nodes, node, seal, hand_over, free_port, eventually):
    """`split_stores(n)`: the two nodes of a moved store, its host first, and the host of a second store at the
    endpoint, to which n states were written. Both groups have met again. With `moves`, the second store has moved to
    its second node before."""

    def made(states, moves=False):
        second = f"127.0.0.1:{free_port()}"
        _, (host, *others) = connected_nodes(3, f"127.0.0.1:{free_port()},{second}")
        others[0].set_state(b"here")
        without = node(second, seal())
        without.announce("x", b"x")
        token = None
        for _ in range(states):
            _, token, _ = without.set_state(b"there", token)
        if moves:  # its server still runs
            left, without = without, node(second, seal())
            without.announce("y", b"y")
            hand_over(left, "x", ["y"], without)
        hand_over(host, "a", ["b", "c"], *others)
        heir, other = heir_of(*others)
        hosts = [(heir, "bc"[others.index(heir)]), (without, "y" if moves else "x")]

        def merged():
            for backend, name in hosts:
                backend.beat(name, leading=False, look=True)
            return not all(backend.hosts_store for backend, _ in hosts)

        eventually(merged)
        return heir, other, without

    return made


@pytest.mark.parametrize("states", [1, KEPT + 6])
def test_cut_off_store_yields_to_the_store_at_the_endpoint(split_stores, states):
    """The store was cut off, so the nodes at the endpoint considered its host lost."""
    heir, other, without = split_stores(states)
    assert [each.get_state()[0] for each in (heir, other, without)] == [b"there"] * 3
    assert keys(without) == ["b", "c", "x"]


def test_hosts_that_replace_each_others_pointer_merge_their_stores(split_stores):
    """One was cut off, and the nodes at the endpoint handed their store over before it came back."""
    nodes = split_stores(1, moves=True)
    assert len({each.get_state()[0] for each in nodes}) == 1
    assert [keys(each) for each in nodes] == [["b", "c", "y"]] * 3


def test_store_can_be_handed_over_after_a_merge(split_stores, hand_over):
    heir, other, without = split_stores(1)
    others = [heir, other]
    assert [state for state, _ in hand_over(without, "x", ["b", "c"], *others)] == [b"there"] * 2
    without.close()
    heir, other = heir_of(*others)
    assert keys(heir) == keys(other) == ["b", "c"]


def test_store_does_not_yield_to_nodes_with_another_secret(
    connected_nodes, node, hand_over, free_port, eventually, capsys
):
    second = f"127.0.0.1:{free_port()}"
    _, (host, heir) = connected_nodes(2, f"127.0.0.1:{free_port()},{second}")
    heir.set_state(b"here")
    stranger = node(second, HmacSeal("job", [secrets.token_bytes(32)]))
    stranger.announce("x", b"x")
    stranger.set_state(b"there")
    hand_over(host, "a", ["b"], heir)
    eventually(lambda: "job split" in capsys.readouterr().err)
    heir.beat("b", leading=False, look=True)
    assert heir.hosts_store
    assert heir.get_state()[0] == b"here"
