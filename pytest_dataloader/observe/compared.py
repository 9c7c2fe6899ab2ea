"""Content of two passes: whether it is the same, and where it differs first."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_dataloader.observe import errors
from pytest_dataloader.observe.facts import BatchFacts, DependenceFacts, ErrorFacts


@dataclass(frozen=True)
class Content:
    """The first batches of an epoch and what ended it, if something did."""

    batches: tuple[BatchFacts, ...] = ()
    error: ErrorFacts | None = None
    fresh: bool = True

    def equals(self, other: Content) -> bool:
        """Whether both came to the same end with the same content."""
        ends = (self.error is None, other.error is None)
        return ends[0] == ends[1] and self._digests() == other._digests()

    def _digests(self) -> list[str]:
        return [batch.digest for batch in self.batches]


def dependence(
    kind: str, lines: tuple[str, ...], settings: tuple[str, str], usual: Content, other: Content
) -> DependenceFacts:
    """Where the content differs first, and between which settings of which lines."""
    batch = next(
        (
            number
            for number, (a, b) in enumerate(zip(usual.batches, other.batches, strict=False))
            if a.digest != b.digest
        ),
        min(len(usual.batches), len(other.batches)),
    )
    sides = [content.batches[batch : batch + 1] for content in (usual, other)]
    return DependenceFacts(
        on=kind,
        lines=lines,
        source=errors.source_line(*_split(lines[0])) if lines else None,
        settings=settings,
        batch=batch,
        usual=sides[0][0] if sides[0] else None,
        other=sides[1][0] if sides[1] else None,
        error=other.error,
    )


def _split(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return file, int(line)
