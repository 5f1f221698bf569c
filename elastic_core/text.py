"""Parses Booleans; normalizes, suggests and sorts names; and escapes untrusted text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, with which escape sequences begin, except tab and line feed
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\xad\u034f\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff0-\ufffb"  # zero-width characters
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
    r"\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # invisible letters
    r"\u2028\u2029\ud800-\udfff]"  # other line separators, and surrogates
    # Joiners, except in emoji and in scripts with joined letters:
    r"|(?<![\u0600-\u0dff\u2600-\u27ff\ufe0f\U0001f000-\U0001faff])[\u200c\u200d]"
    # Variation selectors, except one after each character that has variants: symbols, emoji, ideographs, some scripts:
    r"|(?<![#*0-9\xa9\xae\u1000-\u109f\u1820-\u18aa\u2010-\u2bff\u3000-\u9fff\uf900-\ufaff"
    r"\U0001f000-\U0001faff\U00020000-\U0003ffff])[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_MOST_MARKS = 8  # combining marks per letter; Hebrew and Tibetan have up to five
_MAY_HAVE_MORE = re.compile(rf"[^\x00-\u02ff]{{{_MOST_MARKS + 1},}}")

HIDDEN = "***"
"""The text that replaces a secret in messages."""


def truth(value: object) -> bool | None:
    """Return the Boolean that `value` spells in one of the usual ways, ignoring case, or None for any other value."""
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def counted(number: int, noun: str) -> str:
    """Return the number with the noun in the singular or plural, such as `1 node` or `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def nearest(name: str, valid: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the valid name that is most similar to `name`, ignoring case. If none is similar enough, return a valid
    name that begins with `name`, or None if no name does.

    `likeness` is the minimum similarity, from 0 (any) to 1 (equal).
    """
    from difflib import get_close_matches  # needed only for a misspelled name

    by_lower = {candidate.lower(): candidate for candidate in sorted(valid)}
    wanted = name.lower()
    close = get_close_matches(wanted, list(by_lower), n=1, cutoff=likeness)
    longer = [candidate for candidate in by_lower if len(wanted) > 3 and candidate.startswith(wanted)]
    return next((by_lower[candidate] for candidate in (*close, *longer)), None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return the end of a message, `; did you mean 'x'?`, or an empty string if no valid name is similar."""
    near = nearest(name, valid)
    return f"; did you mean {near!r}?" if near else ""


def normalised(name: str) -> str:
    """Normalize a name as package indexes do: in lower case, with one `-` for each run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts node7 before node66. Numbers may have any size, so they are compared as strings: by
    their length without leading zeros, and then by their digits."""
    parts = filter(None, re.split("([0-9]+)", name))
    numbers = ((part, part.lstrip("0")) for part in parts)
    return [(0, len(digits), digits) if part[0] in "0123456789" else (1, 0, part) for part, digits in numbers]


def printable(text: str) -> str:
    """Escape all characters that would control a terminal or change how the surrounding text looks. The escape
    character, for example, becomes `\\x1b`. Line feeds, tabs and readable characters of any script are kept."""
    return _MAY_HAVE_MORE.sub(_with_few_marks, _UNSAFE.sub(_escaped, text.replace("\r\n", "\n")))


def in_one_line(text: str) -> str:
    """Like `printable`, but escape line feeds as well, so that a name or a reason cannot fake a line of output."""
    return printable(text).replace("\n", "\\n")


def _with_few_marks(found: re.Match[str]) -> str:
    from unicodedata import category  # needed only for non-Latin scripts

    marks, shown = 0, []
    for character in found[0]:
        marks = marks + 1 if category(character) in ("Mn", "Me") else 0
        shown.append(character if marks <= _MOST_MARKS else _escape(character))
    return "".join(shown)


def _escaped(found: re.Match[str]) -> str:
    return _escape(found[0])


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
