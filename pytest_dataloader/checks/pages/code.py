"""The shape of one page of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One code and the parts of its page."""

    name: str
    family: str
    title: str
    why: str
    mend: str
    before: str
    after: str
