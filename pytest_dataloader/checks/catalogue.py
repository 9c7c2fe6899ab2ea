"""The catalogue of codes: what each one means, why it happens and how to mend it."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pytest_dataloader.checks import pages
from pytest_dataloader.checks.pages.code import Code

PAGE_WIDTH = 88


class UnknownCode(ValueError):
    """A word that names neither a code nor, where families count too, a family."""


def _tidy(code: Code) -> Code:
    """Undo what writing the texts inside the pages adds: indentation and line breaks."""
    return Code(
        name=code.name,
        family=code.family,
        title=code.title,
        why=" ".join(code.why.split()),
        mend=" ".join(code.mend.split()),
        before=textwrap.dedent(code.before).strip("\n") + "\n",
        after=textwrap.dedent(code.after).strip("\n") + "\n",
    )


CODES: tuple[Code, ...] = tuple(_tidy(code) for code in pages.CODES)
BY_NAME: Mapping[str, Code] = MappingProxyType({code.name: code for code in CODES})
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(code.family for code in CODES))


def explain(name: str) -> str:
    """Return the page of one code as plain text."""
    if name not in BY_NAME:
        raise _unknown(name, "is not a code", f"The codes are: {', '.join(BY_NAME)}.", BY_NAME)
    code = BY_NAME[name]
    parts = (
        f"{code.name} ({code.family}): {code.title}",
        f"Why it happens\n{_wrapped(code.why)}",
        f"How to mend it\n{_wrapped(code.mend)}",
        f"Before:\n{_indented(code.before)}",
        f"After:\n{_indented(code.after)}",
    )
    return "\n\n".join(parts)


def select(words: Iterable[str]) -> frozenset[str]:
    """Expand names of codes and of families to names of codes."""
    return frozenset(name for word in words for name in _expanded(word))


def _expanded(word: str) -> tuple[str, ...]:
    if word in BY_NAME:
        return (word,)
    if word in FAMILIES:
        return tuple(code.name for code in CODES if code.family == word)
    valid = f"The families are: {', '.join(FAMILIES)}. The codes are: {', '.join(BY_NAME)}."
    raise _unknown(word, "is neither a code nor a family", valid, (*FAMILIES, *BY_NAME))


def _unknown(word: str, rule: str, valid: str, names: Iterable[str]) -> UnknownCode:
    closest = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {closest[0]!r}?" if closest else "."
    return UnknownCode(f"{word!r} {rule}{hint} {valid}")


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _indented(code: str) -> str:
    return textwrap.indent(code.rstrip("\n"), "    ")
