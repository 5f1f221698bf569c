"""Sphinx's settings. The pages are plain markdown that reads well without Sphinx. This module adds what only Sphinx
needs: a table of contents from the links in index.md, and replacements for links that lead out of the docs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_DOCS = Path(__file__).parent

project = "elastic-core"
copyright = "the authors of elastic-core"  # noqa: A001 - the name is Sphinx's
release = re.search(r'^version = "(.+)"', (_DOCS.parent / "pyproject.toml").read_text(), re.M)[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"elastic-core {release}"
html_show_sphinx = False

myst_heading_anchors = 4
highlight_language = "none"
pygments_style = "default"
smartquotes = False  # the hyphens of `--name` are not a dash

sys.path += map(str, sorted((_DOCS.parent / "plugins").glob("elastic-*")))  # the plugins need not be installed
autodoc_mock_imports = ["torch", "grpc", "google", "etcd3"]
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "imported-members": True, "undoc-members": True}
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    from pygments.lexers.special import TextLexer

    _stand_in_for_torch()
    app.add_lexer("mermaid", TextLexer)  # markdown viewers draw the diagram; Sphinx shows its source
    app.connect("source-read", _bring_in_what_is_elsewhere)
    app.connect("source-read", _add_contents)
    app.connect("autodoc-process-signature", _without_the_environment)


def _stand_in_for_torch() -> None:
    """Replace torch's Store, our store's base class. If that were a mock, our store would have the mock's arguments."""
    stand_in = ModuleType("torch.distributed")
    stand_in.Store = type("Store", (), {"__module__": "torch.distributed"})
    sys.modules["torch.distributed"] = stand_in


def _without_the_environment(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a default of `os.environ` by that name, instead of with this process's variables."""
    return signature and re.sub(r"environ\(\{.*\}\)", "os.environ", signature, flags=re.S), returns


def _bring_in_what_is_elsewhere(app: Sphinx, page: str, source: list[Any]) -> None:
    """Replace a paragraph that consists of a link to a page outside the docs with the content of that page, without its
    title. Replace any other link that leads out of the docs with the path in the repository."""
    here = (_DOCS / page).parent

    def text_of(link: re.Match[str]) -> str:
        path = (here / link[1]).resolve()
        _, _, text = path.read_text().partition("\n")
        return _unlinked(text, path.parent, here)

    whole = re.sub(r"^\[[^]]+\]\((\.\./[^)]+\.md)\)$", text_of, source[0], flags=re.M)
    source[0] = _unlinked(whole, here, here)


def _unlinked(text: str, here: Path, page: Path) -> str:
    """Return the text, whose links are relative to `here`, with links for a page in the folder `page`."""

    def path_of(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(_DOCS):
            return f"[{link[1]}]({os.path.relpath(target, page)}{link[3]})"
        return f"{link[1]} (`{target.relative_to(_DOCS.parent)}`)"

    return re.sub(r"\[([^]]+)\]\((?![a-z]+:)([^)#\s]+)((?:#[^)\s]*)?)\)", path_of, text)


def _add_contents(app: Sphinx, page: str, source: list[Any]) -> None:
    """Add a table of contents to the entry page: for each heading, a part with the pages linked below it, in order."""
    if page == "index":
        source[0] = "\n".join([source[0], *_parts(source[0])])


def _parts(text: str) -> list[str]:
    seen: set[str] = set()
    parts = []
    for heading, below in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", text, re.M):
        pages = [link for link in re.findall(r"\]\(([\w/-]+)\.md\)", below) if link not in seen]
        seen.update(pages)
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""]))
    return parts
