"""What the marks of one test say, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader.checks.asked import Asked, NoRecursiveSpawn
from pytest_dataloader.markers import MARKERS, parse


@dataclass(frozen=True)
class Conforms:
    """Every question that needs no budget, less what is skipped."""

    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Axes:
    """A test's own matrix; None means the session's."""

    start_methods: tuple[str, ...] | None = None
    num_workers: tuple[int, ...] | None = None
    persistent_workers: tuple[bool | None, ...] = (None,)
    prefetch_factor: tuple[int | None, ...] = (None,)
    pin_memory: tuple[bool | None, ...] = (None,)


@dataclass(frozen=True)
class Allow:
    """A finding that is expected, in these configurations; None means in all."""

    code: str
    reason: str
    start_methods: tuple[str, ...] | None = None
    num_workers: tuple[int, ...] | None = None

    def covers(self, start_method: str | None, num_workers: int | None) -> bool:
        """Whether the finding is expected in this configuration."""
        methods, counts = self.start_methods, self.num_workers
        return (methods is None or start_method in methods) and (
            counts is None or num_workers in counts
        )


@dataclass(frozen=True)
class Wrong:
    """Stands in the place of a configuration where a test's markers are wrong."""

    why: str


@dataclass(frozen=True)
class Marked:
    """All that the markers of one test say."""

    asked: tuple[Asked, ...] = ()
    axes: Axes | None = None
    allowed: tuple[Allow, ...] = ()
    skipped_codes: frozenset[str] = field(default_factory=frozenset)

    @property
    def only_scripts(self) -> bool:
        """Whether the test asks for nothing but a script, so that it needs no pipeline."""
        return bool(self.asked) and all(
            isinstance(one, NoRecursiveSpawn) and one.script is not None for one in self.asked
        )


def marked(marks: Iterable[Any]) -> Marked:
    """All that the marks of a test say; the closest mark of a kind wins. Raises `MarkerError`."""
    values = [parse(m.name, m.args, m.kwargs) for m in marks if m.name in MARKERS]
    allowed = tuple(value for value in values if isinstance(value, Allow))
    axes = next((value for value in values if isinstance(value, Axes)), None)
    conforms = next((value for value in values if isinstance(value, Conforms)), None)
    asked: dict[Any, Asked] = {}
    for value in values:
        if not isinstance(value, (Allow, Axes, Conforms)):
            asked.setdefault(_kind(value), value)
    skipped: frozenset[str] = frozenset()
    if conforms is not None:
        more, skipped = _conformance(conforms)
        for one in more:
            asked.setdefault(_kind(one), one)
    return Marked(tuple(asked.values()), axes, allowed, skipped)


def _kind(asked: Asked) -> Any:
    """Questions of one kind exclude each other; those about scripts differ by their script."""
    if isinstance(asked, NoRecursiveSpawn):
        return NoRecursiveSpawn, asked.script
    return type(asked)


def _conformance(conforms: Conforms) -> tuple[tuple[Asked, ...], frozenset[str]]:
    from pytest_dataloader.checks.catalogue import FAMILIES, select
    from pytest_dataloader.checks.families import CONFORMANCE, family_of

    families = {word for word in conforms.skip if word in FAMILIES}
    asked = tuple(one for one in CONFORMANCE if family_of(one).name not in families)
    return asked, select(conforms.skip)
