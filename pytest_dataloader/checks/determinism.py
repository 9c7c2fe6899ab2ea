"""Determinism: same seed, same batches, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader.checks.asked import Deterministic
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    GLOBAL_STATES,
    Evidence,
    Question,
    causes,
    is_generator,
    shown_path,
    told_cause,
    told_source,
    unlike_builds,
)
from pytest_dataloader.checks.finding import ERROR, INFO, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    BUILD,
    CLOCK,
    COMPLETION,
    ENTROPY,
    HASH,
    BatchFacts,
    DifferenceFacts,
    LeafFacts,
    RunFacts,
    RunRequest,
)


def needs(asked: Deterministic, question: Question) -> list[RunRequest]:
    """Each seed twice; the reference start method and 0 workers once a seed, where asked."""
    requests = []
    for seed in asked.seeds or question.seeds:
        requests += [RunRequest(question.config, seed, repeat) for repeat in (0, 1)]
        others = _compared_with(asked, question)
        requests += [RunRequest(config, seed) for config in others]
    return requests


def _compared_with(asked: Deterministic, question: Question) -> list[LoaderConfig]:
    others = []
    if "start_methods" in asked.across and question.reference is not None:
        others.append(question.reference)
    if question.config.has_workers:
        others.append(question.config.without_workers())
    return others


def repeats(evidence: Evidence, asked: Deterministic) -> Iterator[Finding | NotJudged]:
    """The same seed over two fresh builds."""
    if "runs" not in asked.across:
        return
    for seed in asked.seeds or evidence.question.seeds:
        pair = _pair(
            evidence, RunRequest(evidence.config, seed), RunRequest(evidence.config, seed, 1)
        )
        if pair is None:
            continue
        first, second = pair
        yield from _not_compared(first, second)
        if _same(first, second):
            if first.digest != second.digest:
                yield _other_order(evidence, seed)
                return
            continue
        if not _rebuilt(first, second):
            yield NotJudged(
                "the dataset could not be built or copied afresh, so a second run began where the "
                "first had ended; give it as dl_make_dataset"
            )
            return
        message = (
            f"expected seed {seed} to give the same batches again, got others: "
            f"{difference(first, second, 'first', 'second')}"
        )
        told = list(_sources(first, second, evidence.config))
        culprit = told[0][0] if told else culprit_of(first, second)
        why = "; and ".join(words for _, words in told[:2])
        message = f"{message}; probable source: {why}" if why else message
        yield _error("not-repeatable", evidence, culprit, message)
        return


def _other_order(evidence: Evidence, seed: int) -> Finding:
    message = (
        f"expected seed {seed} to give the same batches in the same order again, got the same in "
        "another order: with in_order=False they come as they are ready"
    )
    return Finding(
        "not-repeatable",
        INFO,
        (evidence.config,),
        "loader.in_order",
        message,
        "Leave in_order at True where the order matters.",
    )


def _sources(one: RunFacts, other: RunFacts, config: LoaderConfig) -> Iterator[tuple[str, str]]:
    """What may have made two runs of one seed differ, likeliest first: culprit and words.

    Generators that two builds hold in other states, then what the code reads as it makes
    samples, then other fields that two builds hold otherwise, and what the build reads.
    """
    changed = unlike_builds(one, other)
    generators = [f for f in changed if is_generator(f)]
    for field in generators:
        yield field.path, f"{field.path} begins in another state in each build: it has no seed"
    read = [s for s in other.sources if s.kind in _unlike_between_runs(config)]
    for source in (s for s in read if s.stage != BUILD):
        yield shown_path(source.where), told_source(source)
    used = (f for f in changed if f not in generators and f.path not in GLOBAL_STATES)
    for field in used:
        yield field.path, f"{field.path} is another one in each build"
    for source in (s for s in read if s.stage == BUILD):
        yield shown_path(source.where), told_source(source)
    for field in (f for f in changed if f.path in GLOBAL_STATES):
        yield field.path, f"the state of {field.path} differs after each build"


def _unlike_between_runs(config: LoaderConfig) -> tuple[str, ...]:
    """The kinds of sources that differ from run to run; hash seeds only in new interpreters."""
    afresh = config.start_method not in (None, "fork")
    always = (CLOCK, ENTROPY, COMPLETION)
    return (*always, HASH) if afresh else always


def start_methods_agree(evidence: Evidence, asked: Deterministic) -> Iterator[Finding | NotJudged]:
    """The same content as under the reference start method, at equal worker count."""
    reference = evidence.question.reference
    if "start_methods" not in asked.across or reference is None:
        return
    for seed in asked.seeds or evidence.question.seeds:
        pair = _pair(evidence, RunRequest(reference, seed), RunRequest(evidence.config, seed))
        if pair is None or _same(*pair) or not _repeatable(evidence, asked):
            continue
        names = (reference.id, evidence.config.id)
        message = (
            f"expected the batches of {reference.id} (seed {seed}), got others under "
            f"{evidence.config.id}: {difference(*pair, *names)}"
        )
        found = causes(evidence.base)
        hashed = [] if found else _hash_sources(evidence, seed)
        culprit = found[0].path if found else (hashed[0] if hashed else culprit_of(*pair))
        told = "; and ".join(told_cause(cause) for cause in found[:3])
        if hashed:
            told = f"{hashed[1]}, and each spawned worker has a hash seed of its own"
        yield _error(
            "differs-by-start-method",
            evidence,
            culprit,
            f"{message}; probable cause: {told}" if told else message,
        )
        return


def _hash_sources(evidence: Evidence, seed: int) -> list[str]:
    """Where the code that makes samples asks for a hash or goes through a set: place and words."""
    repeat = evidence.get(RunRequest(evidence.config, seed, 1))
    for source in repeat.sources if repeat is not None else ():
        if source.kind == HASH and source.stage != BUILD:
            return [shown_path(source.where), told_source(source)]
    return []


def worker_counts_agree(evidence: Evidence, asked: Deterministic) -> Iterator[Finding | NotJudged]:
    """The same batches as with 0 workers: an error where asked for, else information."""
    if not evidence.config.has_workers:
        return
    seed = (asked.seeds or evidence.question.seeds)[0]
    alone = evidence.config.without_workers()
    pair = _pair(evidence, RunRequest(alone, seed), RunRequest(evidence.config, seed))
    if pair is None or _same_set(*pair) or not _repeatable(evidence, asked):
        return
    if any(isinstance(found, Finding) for found in start_methods_agree(evidence, asked)):
        return  # told as that, with its cause
    fixed = pair[1].expected_batches is not None and _seed_is_nothing(evidence, asked, alone)
    found = causes(evidence.base) if evidence.question.reference is None else []
    if fixed and found:
        yield _other_than_alone(evidence, pair, seed, found)
        return
    severity = ERROR if "num_workers" in asked.across or fixed else INFO
    message = (
        f"expected the batches of 0 workers (seed {seed}), got others under {evidence.config.id}: "
        f"{difference(*pair, 'w0', evidence.config.id)}"
    )
    advice = BY_NAME["depends-on-num-workers"].mend
    yield Finding(
        "depends-on-num-workers",
        severity,
        (evidence.config,),
        culprit_of(*pair),
        message,
        advice,
    )


def _seed_is_nothing(evidence: Evidence, asked: Deterministic, config: LoaderConfig) -> bool:
    """Whether all seeds give the same batches here, so that nothing in them is random."""
    seeds = asked.seeds or evidence.question.seeds
    runs = [evidence.get(RunRequest(config, seed)) for seed in seeds]
    digests = {run.digest for run in runs if run is not None and run.ok}
    states = [
        {f.path: f.digest for f in run.built if f.path in GLOBAL_STATES} for run in runs if run
    ]
    if any(path in states[-1] and states[-1][path] == states[0][path] for path in states[0]):
        return False  # the pipeline seeds over the run's seed as it is built
    return len(seeds) > 1 and len(digests) == 1 and all(run is not None for run in runs)


def _other_than_alone(
    evidence: Evidence, pair: tuple[RunFacts, RunFacts], seed: int, found: list[DifferenceFacts]
) -> Finding:
    """Where the matrix has no other start method, the test process itself is the reference."""
    told = "; and ".join(told_cause(cause) for cause in found[:3])
    message = (
        f"expected the batches of 0 workers (seed {seed}), got others under {evidence.config.id}: "
        f"{difference(*pair, 'w0', evidence.config.id)}; probable cause: {told}"
    )
    return _error("differs-by-start-method", evidence, found[0].path, message)


def _pair(
    evidence: Evidence, one: RunRequest, other: RunRequest
) -> tuple[RunFacts, RunFacts] | None:
    first, second = evidence.get(one), evidence.get(other)
    if first is None or second is None or not (first.ok and second.ok):
        return None
    return first, second


def _same(one: RunFacts, other: RunFacts) -> bool:
    if one.in_order and other.in_order:
        return one.digest == other.digest
    return _same_set(one, other)


def _same_set(one: RunFacts, other: RunFacts) -> bool:
    return [e.batch_multiset for e in one.epochs] == [e.batch_multiset for e in other.epochs]


def _repeatable(evidence: Evidence, asked: Deterministic) -> bool:
    """Whether this configuration gives the same again; if not, that is the finding to tell."""
    over_runs = replace(asked, across=("runs",))
    found = (one for one in repeats(evidence, over_runs) if isinstance(one, Finding))
    return not any(one.severity == ERROR for one in found)


def _rebuilt(one: RunFacts, other: RunFacts) -> bool:
    afresh = "the dataset is not built afresh"
    return one.config.has_workers or not (afresh in one.notes or afresh in other.notes)


def _not_compared(one: RunFacts, other: RunFacts) -> Iterator[NotJudged]:
    kinds = {kind for run in (one, other) for epoch in run.epochs for kind in epoch.not_compared}
    if kinds:
        yield NotJudged(
            f"not compared: {', '.join(sorted(kinds))} in the batches has no content to digest"
        )


def first_difference(
    one: RunFacts, other: RunFacts
) -> tuple[int, BatchFacts | None, BatchFacts | None] | None:
    """The number of the first batch that differs, and what each run has there."""
    for first, second in zip(one.epochs, other.epochs, strict=False):
        for index, (a, b) in enumerate(zip(first.batch_facts, second.batch_facts, strict=False)):
            if a.digest != b.digest:
                return index, a, b
        shorter = min(len(first.batch_facts), len(second.batch_facts))
        if first.batches != second.batches:
            return shorter, _at(first.batch_facts, shorter), _at(second.batch_facts, shorter)
    return None


def _at(batches: tuple[BatchFacts, ...], index: int) -> BatchFacts | None:
    return batches[index] if index < len(batches) else None


def differing_leaf(
    a: BatchFacts, b: BatchFacts
) -> tuple[LeafFacts | None, LeafFacts | None] | None:
    """The first leaf that differs between two batches, by its path."""
    ours, theirs = ({leaf.path: leaf for leaf in batch.leaves} for batch in (a, b))
    for path in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None or one.digest != other.digest:
            return one, other
    return None


def difference(one: RunFacts, other: RunFacts, name: str, other_name: str) -> str:
    """Where two runs differ first, in words: the batch, the field and both values."""
    if one.batches != other.batches:
        return f"{name} has {one.batches} batches, {other_name} has {other.batches}"
    found = first_difference(one, other)
    if found is None:
        return f"a batch after the first {len(one.epochs[0].batch_facts)} differs"
    index, a, b = found
    leaf = differing_leaf(a, b) if a is not None and b is not None else None
    if leaf is None:
        return f"batch {index} is the first that differs"
    path = (leaf[0] or leaf[1]).path  # type: ignore[union-attr]
    ours, theirs = (_shown(side) for side in leaf)
    return (
        f"batch {index} is the first that differs, at {path}: {name} has {ours}, "
        f"{other_name} has {theirs}"
    )


def _shown(leaf: LeafFacts | None) -> str:
    return "nothing" if leaf is None else f"{leaf.kind} {leaf.preview}"


def culprit_of(one: RunFacts, other: RunFacts) -> str | None:
    """The field of the batch that differs first."""
    found = first_difference(one, other)
    if found is None or found[1] is None or found[2] is None:
        return None
    leaf = differing_leaf(found[1], found[2])
    return (leaf[0] or leaf[1]).path if leaf else None  # type: ignore[union-attr]


def _error(code: str, evidence: Evidence, culprit: str | None, message: str) -> Finding:
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (repeats, start_methods_agree, worker_counts_agree)
