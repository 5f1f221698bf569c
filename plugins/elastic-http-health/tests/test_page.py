"""The page in headless Chromium, with fake agents."""

from __future__ import annotations

import pytest
from chromium import a_browser, prefer, resize
from elastic_http_health.files import FromFiles
from elastic_http_health.options import Options
from elastic_http_health.server import HttpHealthServer
from elastic_http_health.tls import server_context

from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.health import AgentPhase, CheckLevel, CheckResult, CheckStatus, RoundStatus
from elastic_core.interfaces.node import Member
from elastic_core.support.sockets import PortReservation

pytestmark = pytest.mark.nightly

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&amp;"


@pytest.fixture(scope="module")
def page():
    with a_browser() as opened:
        yield opened


def url(server, fragment=""):
    return f"http://127.0.0.1:{server.port}/{fragment}"


def test_job_text_never_becomes_markup(page, view, serve):
    failure = ProcessFailure(0, 7, -9, message=EVIL, stack=EVIL, reason=EVIL, node=EVIL, stderr_tail=(EVIL,))
    rounds = (RoundStatus(1, 1, 0, 1, 1.0, EVIL, 2.0, EVIL, EVIL), RoundStatus(2, 1, 0, 1, 3.0, EVIL))
    members = (Member(EVIL, EVIL, EVIL, EVIL, 1),)
    view.show(run_id=EVIL, node=EVIL, role=EVIL, reason=EVIL, members=members, rounds=rounds, last_failure=failure)
    page.open(url(serve()))
    assert page.shows("#run", "onerror") == EVIL
    for selector in ("#who", "#reason", "#rounds", "#failure .headline", "#failure pre", "#members tbody"):
        assert EVIL in page.shows(selector, "onerror")
    assert page.all("img, #all script") == []
    assert "owned" not in page.opened.title.replace(EVIL, "")
    assert page.faults() == []


def test_page_stays_usable_with_a_thousand_members(page, view, serve):
    members = tuple(Member(f"node{i}", f"host{i}", f"10.0.{i // 250}.{i % 250}", "trainer", 8) for i in range(1000))
    rounds = tuple(RoundStatus(i, 1000, 700, 8000, 1.0, "", 2.0, "x", "failure") for i in range(1, 101))
    view.show(members=members, group_rank=700, round=100, rounds=rounds)
    page.open(url(serve()))
    page.shows("#members caption", "1,000 nodes")
    assert len(page.all("#members tbody tr")) == 50
    assert len(page.all("#rounds > li")) == 8
    page.all("#find")[0].send_keys("node70")
    page.shows("#members tbody", "node709")
    page.shows("#members tr.own", "this node")
    page.all("#more-rounds")[0].click()
    page.shows("#rounds > li[data-round='1']", "failure")
    for width in (320, 390, 1280):
        resize(page.opened, width, 800, phone=width < 600)
        assert page.opened.execute_script("return document.documentElement.scrollWidth") <= width


def test_page_follows_changes_and_reconnects(page, view, serve):
    server = serve()
    page.open(url(server))
    page.shows("#phase", "Running")
    view.show(phase=AgentPhase.STOPPING, reason="rank 3: exit code 41")
    page.shows("#phase", "Stopping workers")
    assert page.shows("#reason", "rank 3") == "rank 3: exit code 41"
    port = server.port
    server.stop()
    held = PortReservation(port)  # keeps other processes off the port
    page.shows("#banner", "No response")
    again = HttpHealthServer(view, port, 30.0)
    try:
        again.start()
        view.show(phase=AgentPhase.RUNNING, reason="")
        page.shows("#phase", "Running")
        assert not page.all("#banner")[0].is_displayed()
    finally:
        again.stop()
        held.release()


def test_page_asks_for_the_token(page, serve):
    server = serve(Options(token="s3+cret/=="))
    page.open(url(server))
    page.shows("#ask", "Token required")
    assert not page.all("#all")[0].is_displayed()
    page.all("#token")[0].send_keys("wrong\n")
    page.shows("#refused", "Wrong token")
    page.all("#token")[0].clear()
    page.all("#token")[0].send_keys("s3+cret/==\n")
    page.shows("#run", "job")
    page.open(url(server, "#token=s3+cret/=="))
    page.shows("#run", "job")
    assert not page.all("#ask")[0].is_displayed()


def test_page_works_over_https_with_a_token(page, view, serve, tmp_path):
    """The browser must not block any content of the page."""
    issued = pytest.importorskip("trustme").CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    tls = FromFiles([], lambda: server_context(str(tmp_path / "both.pem"), None))
    server = serve(Options(token="s3cret", tls=tls))
    page.open(f"https://127.0.0.1:{server.port}/#token=s3cret")
    page.shows("#run", "job")
    view.show(phase=AgentPhase.STOPPING, reason="rank 3: exit code 41")
    page.shows("#reason", "rank 3")
    assert page.opened.execute_script("return isSecureContext")
    assert page.faults() == []


_CONTRAST = """
const light = (c) => {
  const [r, g, b] = c.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour.slice(0, 3);
  }
};
const bad = [];
for (const element of document.querySelectorAll("#all *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility()) continue;
  const [a, b] = [light(parse(getComputedStyle(element).color).slice(0, 3)), light(ground(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push(`${element.tagName} ${element.className} ${element.textContent}: ${ratio.toFixed(2)}`);
}
return bad;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_meets_contrast_and_structure_rules(page, view, serve, scheme):
    causes = ("failure", "hang", "node lost", "membership", "succeeded", "failed", "stopped")
    rounds = tuple(RoundStatus(i + 1, 1, 0, 1, 1.0, "x", 2.0, "y", cause) for i, cause in enumerate(causes))
    failure = ProcessFailure(0, 7, 3, message="a", stack="b", reason="exit code 3")
    levels = [CheckResult(level, "found", "advice") for level in CheckLevel]
    view.checked = tuple(CheckStatus(result.level.value, "a check", result, 5.0) for result in levels)
    view.show(rounds=(*rounds, RoundStatus(8, 1, 0, 1, 3.0)), round=8, last_failure=failure)
    prefer(page.opened, scheme)
    page.open(url(serve()))
    page.shows("#checks tbody", "failure")
    assert page.opened.execute_script(_CONTRAST) == []
    assert page.opened.execute_script("return document.documentElement.lang") == "en"
    headings = [heading.text for heading in page.all("#all h1, #all h2")]
    assert headings == [
        *("job", "Workers of this node", "Last failure", "Health checks of this machine"),
        *("Rounds", "Members of the round"),
    ]
    assert all(table.find_elements("css selector", "caption") for table in page.all("table"))


def test_health_checks_are_shown_with_their_remedies(page, view, serve):
    page.open(url(serve()))
    page.shows("#workers", "")
    assert not page.all("#checks")[0].is_displayed()
    bad = CheckResult(CheckLevel.FAILURE, EVIL, "mount /data")
    view.checked = (CheckStatus("data", "the data is mounted", bad, 5.0), CheckStatus("gpu", "GPUs answer"))
    view.show(reason="changed")
    shown = page.shows("#checks tbody", "mount /data")
    assert EVIL in shown and "not yet known" in shown
    assert page.all("#checks img") == [] and page.faults() == []
