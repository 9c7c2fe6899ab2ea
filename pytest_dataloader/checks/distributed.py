"""Distributed jobs: ranks cover the data once, in equally many batches, with own streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_dataloader.checks.asked import Complete, Seeding
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    GLOBAL_STATES,
    Evidence,
    Question,
    samples_of,
    shown_path,
)
from pytest_dataloader.checks.finding import ERROR, INFO, Finding, NotJudged
from pytest_dataloader.observe.facts import RandomnessFacts, RunFacts, RunRequest

_A_RANK_APART = 1_000


def needs(asked: Complete | Seeding, question: Question) -> list[RunRequest]:
    """A run of two epochs a rank: seeded alike to count samples, each its own way to compare
    random streams."""
    if asked.world_size is None:
        return []
    apart = _A_RANK_APART if isinstance(asked, Seeding) else 0
    return [
        RunRequest(
            question.config,
            question.seeds[0] + rank * apart,
            repeat=1,
            epochs=2,
            rank=rank,
            world_size=asked.world_size,
        )
        for rank in range(asked.world_size)
    ]


def _runs(evidence: Evidence, asked: Complete | Seeding) -> list[RunFacts] | NotJudged:
    runs = [evidence.get(request) for request in needs(asked, evidence.question)]
    for rank, run in enumerate(runs):
        if run is None or not run.ok:
            why = run.reason if run is not None else "it was not run"
            return NotJudged(f"the ranks are not judged: rank {rank}: {why}")
        for note in run.notes:
            if "for all ranks" in note:
                return NotJudged(f"the ranks are not judged: {note}")
    return [run for run in runs if run is not None]


def ranks_share_the_data(evidence: Evidence, asked: Complete) -> Iterator[Finding | NotJudged]:
    """Over all ranks each sample comes once; what evens the ranks out is information."""
    if asked.world_size is None:
        return
    runs = _runs(evidence, asked)
    if isinstance(runs, NotJudged):
        yield runs
        return
    yield from _equally_many_batches(evidence, runs)
    given = [_given(run) for run in runs]
    wanted = _wanted(evidence, runs)
    if None in given or wanted is None:
        yield NotJudged(
            "the ranks' samples cannot be told apart by their content; give dl_sample_key"
        )
        return
    yield from _shared(evidence, runs, [one for one in given if one is not None], wanted)


def _given(run: RunFacts) -> Counter[Any] | None:
    """What one rank gives in its first epoch: indices, or identities of samples."""
    first = run.epochs[0]
    if run.dataset is not None and not run.dataset.iterable:
        return Counter(first.indices) if first.indices is not None else None
    if first.sample_ids is None or None in first.sample_ids:
        return None
    second = run.epochs[1]
    if second.batches and samples_of(first) != samples_of(second) and not run.epoch_fields:
        return None
    return Counter(first.sample_ids)


def _wanted(evidence: Evidence, runs: Sequence[RunFacts]) -> Counter[Any] | None:
    """What the data is: all indices, or what the pipeline gives where there are no ranks."""
    described = runs[0].dataset
    if described is None:
        return None
    own = not described.sampler.startswith("torch.")
    if not described.iterable and not own:
        return Counter(range(described.length)) if described.length is not None else None
    alone = evidence.epochs_in_process
    return _given(alone) if alone is not None else None


def _shared(
    evidence: Evidence,
    runs: Sequence[RunFacts],
    given: Sequence[Counter[Any]],
    wanted: Counter[Any],
) -> Iterator[Finding]:
    total: Counter[Any] = sum(given, Counter())
    ranks, samples = len(runs), sum(wanted.values())
    again, lost = total - wanted, wanted - total
    extra, missing = sum(again.values()), sum(lost.values())
    padded = -samples % ranks
    if 0 < extra <= padded and not missing:
        yield _told(
            "duplicated-samples",
            INFO,
            evidence,
            _culprit(runs[0]),
            f"expected {samples} samples over {ranks} ranks, got {extra} more: the sampler repeats "
            "some, so that all ranks have equally many",
        )
    elif extra:
        first = _first(again, given)
        yield _told(
            "rank-overlap",
            ERROR,
            evidence,
            _culprit(runs[0]),
            f"expected each of {samples} samples in one of {ranks} ranks, but {len(again)} come "
            f"again, {extra} times in all{first}; the ranks give "
            f"{', '.join(str(sum(one.values())) for one in given)}",
        )
    if missing:
        dropped = missing < ranks * _batch(runs[0])
        even = " so that all ranks have equally many" if dropped else ""
        yield _told(
            "lost-samples",
            INFO if dropped else ERROR,
            evidence,
            _culprit(runs[0]),
            f"expected each of {samples} samples in one of {ranks} ranks, but {missing} come in "
            f"none{_first(lost, [])}{': they are left out' + even if dropped else ''}",
        )


def _batch(run: RunFacts) -> int:
    """The largest batch, as far as samples and batches tell; 1 where nothing is dropped."""
    drops = run.dataset is not None and run.dataset.drop_last
    first = run.epochs[0]
    return -(-(first.samples or 1) // max(first.batches, 1)) if drops else 1


def _first(those: Counter[Any], given: Sequence[Counter[Any]]) -> str:
    """The first indices, and the ranks that have the very first; nothing of content digests."""
    indices = sorted(one for one in those if isinstance(one, int))
    if not indices:
        return ""
    words = f"; the first are samples {', '.join(map(str, indices[:5]))}"
    ranks = [str(rank) for rank, one in enumerate(given) if one[indices[0]]]
    return f"{words} (sample {indices[0]} in ranks {', '.join(ranks)})" if ranks else words


def _equally_many_batches(evidence: Evidence, runs: Sequence[RunFacts]) -> Iterator[Finding]:
    counts = [run.epochs[0].batches for run in runs]
    if len(set(counts)) > 1:
        yield _told(
            "rank-overlap",
            ERROR,
            evidence,
            _culprit(runs[0]),
            f"expected equally many batches in each of {len(runs)} ranks, got "
            f"{', '.join(map(str, counts))}: in distributed training the ranks with more of them "
            "wait for the others for ever",
        )


def _culprit(run: RunFacts) -> str:
    described = run.dataset
    if described is not None and described.iterable:
        place = described.places.get("__iter__")
        return shown_path(place) if place else "dataset.__iter__"
    return "loader.sampler"


def ranks_draw_differently(evidence: Evidence, asked: Seeding) -> Iterator[Finding | NotJudged]:
    """Ranks that are seeded apart draw other numbers as they make samples."""
    if asked.world_size is None:
        return
    runs = _runs(evidence, asked)
    if isinstance(runs, NotJudged):
        yield runs
        return
    by_path: dict[str, list[set[str]]] = {}
    for run in runs:
        for path, states in _begun(run).items():
            by_path.setdefault(path, []).append(states)
    for path, begun in by_path.items():
        if len(begun) > 1 and any(begun[0] & other for other in begun[1:]):
            owner = "loader.generator or worker_init_fn" if path in GLOBAL_STATES else path
            yield _told(
                "duplicate-randomness",
                ERROR,
                evidence,
                path if path not in GLOBAL_STATES else "loader.generator",
                f"expected each of {len(runs)} ranks to draw random numbers of its own when each "
                f"has a seed of its own, but {path} begins in the same state in several of them: "
                f"{owner} has a seed that is the same in all ranks",
            )


def _begun(run: RunFacts) -> dict[str, set[str]]:
    """The states in which the generators that are drawn from began the first epoch."""
    found: dict[str, set[str]] = {}
    for one in run.randomness:
        if one.epoch == 0 and one.used and not _of_the_order(one, run):
            found.setdefault(one.path, set()).add(one.first or one.states[0])
    return found


def _of_the_order(one: RandomnessFacts, run: RunFacts) -> bool:
    """Whether a generator only gives the order, which the ranks must agree on."""
    return one.path.startswith("loader.sampler") or (
        one.path == "torch" and not run.config.has_workers
    )


def _told(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)
