"""Words that people write: the spellings of true and false, the spellings of one name, and the name that a misspelt one
was meant to be. And what comes from elsewhere, so that people can read it and it does no more than that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})

_STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, as escape sequences begin, but tab and line feed
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text
    r"\xad\u034f\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff0-\ufffb"  # what takes no room
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
    r"\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # letters that are not seen
    r"\u2028\u2029\ud800-\udfff]"  # other ends of lines, and what is no character
    # Joiners, but those of scripts in which letters join, and of emoji:
    r"|(?<![\u0600-\u0dff\u2600-\u27ff\ufe0f\U0001f000-\U0001faff])[\u200c\u200d]"
    # What selects a variant, but one for each sign of those that have some: symbols, emoji, ideographs, some scripts:
    r"|(?<![#*0-9\xa9\xae\u1000-\u109f\u1820-\u18aa\u2010-\u2bff\u3000-\u9fff\uf900-\ufaff"
    r"\U0001f000-\U0001faff\U00020000-\U0003ffff])[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_MOST_MARKS = 8  # on one letter; in Hebrew and Tibetan there are five
_MAY_HAVE_MORE = re.compile(rf"[^\x00-\u02ff]{{{_MOST_MARKS + 1},}}")

HIDDEN = "***"
"""Shown in place of a secret."""


def truth(value: object) -> bool | None:
    """True or False as `value` spells it, in any case; None for other words."""
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def nearest(name: str, valid: Iterable[str], likeness: float = 0.6) -> str | None:
    """The valid name that is most like `name`, apart from case; otherwise one that begins with it, or None.

    `likeness` is the least likeness that counts, from 0 (any) to 1 (equal).
    """
    from difflib import get_close_matches  # imported only for a misspelt name

    by_lower = {candidate.lower(): candidate for candidate in sorted(valid)}
    wanted = name.lower()
    close = get_close_matches(wanted, list(by_lower), n=1, cutoff=likeness)
    longer = [candidate for candidate in by_lower if len(wanted) > 3 and candidate.startswith(wanted)]
    return next((by_lower[candidate] for candidate in (*close, *longer)), None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a message: `; did you mean 'x'?`, or empty if no valid name is near."""
    near = nearest(name, valid)
    return f"; did you mean {near!r}?" if near else ""


def normalised(name: str) -> str:
    """A name in the one spelling that package indexes give all its spellings: lower case, and one `-` for
    each run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def printable(text: str) -> str:
    """The text with escapes (`\\x1b`) for all characters that would do something to a terminal, or to how the text
    around them looks. Line ends and tabs stay, as does what can be read, in any script."""
    return _MAY_HAVE_MORE.sub(_with_few_marks, _STEERING.sub(_escaped, text.replace("\r\n", "\n")))


def in_one_line(text: str) -> str:
    """As `printable`, with an escape for line ends as well: for names and reasons, which could pass for our lines."""
    return printable(text).replace("\n", "\\n")


def _with_few_marks(found: re.Match[str]) -> str:
    from unicodedata import category  # imported only for other scripts than Latin

    marks, shown = 0, []
    for character in found[0]:
        marks = marks + 1 if category(character) in ("Mn", "Me") else 0
        shown.append(character if marks <= _MOST_MARKS else _escape(character))
    return "".join(shown)


def _escaped(found: re.Match[str]) -> str:
    return _escape(found[0])


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
