"""How the experiments' pages write numbers, lists, tables and paragraphs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(number: int) -> str:
    """Return 10⁴ for 10000, and 50 for 50."""
    exponent = round(math.log10(number))
    if number == 10**exponent and exponent > 1:
        return "10" + str(exponent).translate(_SUPERSCRIPTS)
    return str(number)


def join_words(items: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def count(number: int, noun: str) -> str:
    """Return "1 draw" or "20 draws"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """Return a text as lines of at most 100 characters."""
    plain = " ".join(text.split())
    return textwrap.fill(plain, 100, break_long_words=False, break_on_hyphens=False)
