"""Links between pages are valid, also in files that Sphinx does not process: README files and the changelog."""

from __future__ import annotations

import re

from blocks import PAGES, ROOT

ALL = sorted({*PAGES, *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")})


def anchors(text):
    """Return the headings' anchors in the form that Sphinx and code hosts use."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page, text):
    """Return a page's links to files or headings that do not exist."""
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:|mailto:", link)]
    return [link for link in links if not leads_somewhere(page, *link.partition("#")[::2])]


def leads_somewhere(page, path, anchor):
    there = page.parent / path if path else page
    if not anchor or there.suffix != ".md":
        return there.exists()
    return there.exists() and anchor in anchors(there.read_text())


def test_links_are_valid():
    assert {page: found for page in ALL if (found := broken(page, page.read_text()))} == {}
