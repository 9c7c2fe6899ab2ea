"""Seeding: workers draw other random numbers, epochs differ, data stays, seeds matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_dataloader.checks import distributed
from pytest_dataloader.checks.asked import Seeding
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    GLOBAL_STATES,
    Evidence,
    Question,
    samples_of,
    shown_path,
    told_source,
)
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    BUILD,
    CONSTANT,
    INDEX,
    ORDER,
    SAMPLE,
    SEED,
    EpochFacts,
    RandomnessFacts,
    RunFacts,
    RunRequest,
    SourceFacts,
)

_SHUFFLING = "torch.utils.data.sampler.RandomSampler"


def needs(asked: Seeding, question: Question) -> list[RunRequest]:
    """A run of several epochs, the first two seeds to see whether they matter, and the ranks."""
    seeds = [RunRequest(question.config, seed) for seed in question.seeds[:2]]
    return [question.epochs(), *seeds, *distributed.needs(asked, question)]


def failed(evidence: Evidence, _asked: Seeding) -> Iterator[Finding | NotJudged]:
    """A later epoch that does not come to its end leaves nothing to judge."""
    run = evidence.get(evidence.question.epochs())
    if run is not None and not run.ok:
        yield NotJudged(f"a run of several epochs did not come to its end: {run.reason}")


def workers_draw_differently(evidence: Evidence, _asked: Seeding) -> Iterator[Finding | NotJudged]:
    """No generator begins an epoch in one state in two workers and is drawn from in both.

    torch seeds ``random``, ``numpy.random`` and ``torch`` in each worker with the base seed plus
    the worker's id (PyTorch docs, torch.utils.data, "Randomness in multi-process data loading");
    a generator that the dataset holds is copied as it is.
    """
    run = evidence.epochs
    for path, drawn in _by_path(run, epoch=0).items():
        used = [one for one in drawn if _draws_for_samples(one)]
        firsts = Counter(one.first for one in used if one.first is not None)
        same = max(firsts.values(), default=0)
        if same < 2:
            continue
        what = (
            f"{path} (global) was seeded alike"
            if path in GLOBAL_STATES
            else f"{path} is the same copy"
        )
        message = (
            f"expected each worker to draw random numbers of its own, but {what} in {same} of "
            f"{len(drawn)} {evidence.config.start_method} workers, which draw the same numbers"
        )
        yield _finding("duplicate-randomness", ERROR, evidence, _culprit(path), message)


def _by_path(run: RunFacts | None, epoch: int) -> dict[str, list[RandomnessFacts]]:
    found: dict[str, list[RandomnessFacts]] = {}
    for one in run.randomness if run is not None else ():
        if one.epoch == epoch:
            found.setdefault(one.path, []).append(one)
    return found


def _draws_for_samples(one: RandomnessFacts) -> bool:
    """Whether numbers are drawn as samples are made, and not only once before the first of them.

    All workers may well shuffle a list of shards alike before each takes its own part.
    """
    if len(one.states) < 2:
        return one.used
    return len(set(one.states)) > 1


def _culprit(path: str) -> str:
    return "loader.worker_init_fn" if path in GLOBAL_STATES else path


def epochs_differ(evidence: Evidence, _asked: Seeding) -> Iterator[Finding | NotJudged]:
    """What is random is so anew in each epoch."""
    run = evidence.epochs
    if run is None:
        return
    repeated = [path for path in _by_path(run, 0) if _begins_alike(run, path)]
    for path in repeated:
        message = (
            f"expected other random numbers in the second epoch, but {path} begins it in the state "
            "in which it began the first: its augmentation repeats"
        )
        yield _finding("epochs-identical", ERROR, evidence, _culprit(path), message)
    if repeated:
        return
    seeded = list(_seeded_in_code(run))
    if seeded:
        yield _drawn_alike(evidence, run, seeded[0])
    elif _order_waits_for_epoch(run):
        yield _order_repeats(evidence, run)
    elif _random(evidence, run) and _same_content(run.epochs[0], run.epochs[1]):
        if run.epoch_fields and run.dataset is not None and run.dataset.persistent:
            return  # told as stale-worker-state
        message = (
            f"expected other batches in the second epoch of a pipeline that draws random numbers, "
            f"got the same {run.epochs[0].batches} batches under {evidence.config.id}"
        )
        yield _finding("epochs-identical", WARNING, evidence, "dataset", message)


def _seeded_in_code(run: RunFacts) -> Iterator[SourceFacts]:
    """Where the code seeds a generator by a constant, or by the index alone, each time that it
    makes a sample or an order; told only where the epochs show it. Constants first."""
    same = {
        SAMPLE: _same_samples(run),
        ORDER: run.epochs[0].indices == run.epochs[1].indices,
    }
    for seed in (CONSTANT, INDEX):
        for one in run.sources:
            if one.kind == SEED and one.seed == seed and same.get(one.stage, False):
                yield one


def _same_samples(run: RunFacts) -> bool:
    """Whether two epochs give the same samples; what iterates also gives the order."""
    if run.dataset is not None and run.dataset.iterable:
        return _same_content(run.epochs[0], run.epochs[1])
    return samples_of(run.epochs[0]) == samples_of(run.epochs[1])


def _drawn_alike(evidence: Evidence, run: RunFacts, source: SourceFacts) -> Finding:
    iterable = run.dataset is not None and run.dataset.iterable
    if source.seed == INDEX:
        severity, what = INFO, "from the index alone: a sample's numbers are the same in each epoch"
    elif source.stage == ORDER:
        severity, what = WARNING, "by a constant: the order is the same in each epoch"
    elif iterable:
        severity, what = WARNING, "by a constant: the numbers are the same in each epoch"
    else:
        severity, what = ERROR, "by a constant: each sample gets the same numbers, in each epoch"
    message = (
        f"expected other random numbers in the second epoch, but {told_source(source)} seeds a "
        f"generator {what}"
    )
    return _finding("epochs-identical", severity, evidence, shown_path(source.where), message)


def _order_waits_for_epoch(run: RunFacts) -> bool:
    """Whether a sampler that has ``set_epoch`` gives a shuffled order, and the same twice."""
    indices, again = run.epochs[0].indices, run.epochs[1].indices
    if run.dataset is None or run.dataset.told_epochs is None or not indices:
        return False
    return indices == again and list(indices) != sorted(indices)


def _order_repeats(evidence: Evidence, run: RunFacts) -> Finding:
    told = run.dataset.told_epochs if run.dataset is not None else None
    path, name = told or ("loader.sampler", "the sampler")
    message = (
        f"expected another order in the second epoch, got the same: {name} takes the epoch from "
        f"set_epoch, which was not called here; call {path}.set_epoch(epoch) before each epoch"
    )
    return _finding("epochs-identical", INFO, evidence, path, message)


def _begins_alike(run: RunFacts, path: str) -> bool:
    """Whether workers that were started anew for the second epoch draw from the same state."""
    states = []
    for epoch in (0, 1):
        drawn = [one for one in _by_path(run, epoch).get(path, []) if _draws_for_samples(one)]
        states.append({one.first for one in drawn} - {None})
    return bool(states[0]) and states[0] == states[1]


def _random(evidence: Evidence, run: RunFacts) -> bool:
    """Whether numbers are drawn as samples are made; what the build draws may well stay."""
    names = [one for one in run.randomness if one.path != "torch" or evidence.config.has_workers]
    return any(_draws_for_samples(one) for one in names)


def _seeds_differ(evidence: Evidence) -> bool | None:
    """Whether two seeds give other batches; None where that is not known."""
    runs = [evidence.get(RunRequest(evidence.config, seed)) for seed in evidence.question.seeds[:2]]
    known = [run.digest for run in runs if run is not None and run.ok]
    return known[0] != known[1] if len(known) == 2 else None


def _same_content(one: EpochFacts, other: EpochFacts) -> bool:
    return one.batches > 0 and one.digest == other.digest


def stored_data_stays(evidence: Evidence, _asked: Seeding) -> Iterator[Finding | NotJudged]:
    """Making a sample does not edit what the dataset stores."""
    run = evidence.epochs
    if run is None or not run.drifted:
        return
    if samples_of(run.epochs[0]) == samples_of(run.epochs[1]):
        return
    drift = run.drifted[0]
    message = (
        f"expected the stored data to stay as it was, but {drift.path} is {drift.parent} before "
        f"and {drift.child} after {len(run.epochs)} epochs, and the samples of the epochs differ"
    )
    # Seeds are no evidence here: they also order the samples.
    severity = WARNING if any(map(_draws_for_samples, run.randomness)) else ERROR
    yield _finding("epochs-drift", severity, evidence, drift.path, message)


def seeds_matter(evidence: Evidence, _asked: Seeding) -> Iterator[Finding | NotJudged]:
    """Where random numbers are drawn for samples, another seed gives other batches."""
    run = evidence.epochs
    if run is None or _seeds_differ(evidence) is not False:
        return
    held = [one.path for one in run.randomness if _draws_for_samples(one)]
    names = [path for path in dict.fromkeys(held) if path not in GLOBAL_STATES]
    seeds = " and ".join(map(str, evidence.question.seeds[:2]))
    if not names:
        yield from _seeded_by_code(evidence, run, seeds)
        return
    message = (
        f"expected seeds {seeds} to give other batches, got the same: {names[0]} is drawn from, "
        "but has a fixed seed of its own"
    )
    yield _finding("seed-ignored", WARNING, evidence, names[0], message)


def _seeded_by_code(evidence: Evidence, run: RunFacts, seeds: str) -> Iterator[Finding]:
    """Seedings in the user's code: by a constant as samples are made, or over the run's seed."""
    for one in _seeded_in_code(run):
        if one.seed == CONSTANT and one.stage == SAMPLE:
            message = (
                f"expected seeds {seeds} to give other batches, got the same: {told_source(one)} "
                "seeds a generator by a constant"
            )
            yield _finding("seed-ignored", WARNING, evidence, shown_path(one.where), message)
            return
    drawn = {one.path for one in run.randomness if _draws_for_samples(one)}
    if run.dataset is not None and run.dataset.sampler == _SHUFFLING:
        drawn.add("torch")
    for path in _seeded_over(evidence):
        if path in drawn:
            where = [s for s in run.sources if s.kind == SEED and s.stage == BUILD]
            by = f" by {told_source(where[0])}" if where else ""
            message = (
                f"expected seeds {seeds} to give other batches, got the same: {path} is seeded "
                f"again{by} as the pipeline is built"
            )
            culprit = shown_path(where[0].where) if where else path
            yield _finding("seed-ignored", WARNING, evidence, culprit, message)
            return


def _seeded_over(evidence: Evidence) -> list[str]:
    """The global generators that two seeds of the run leave in one state after the build."""
    runs = [evidence.get(RunRequest(evidence.config, seed)) for seed in evidence.question.seeds[:2]]
    states = [
        {f.path: f.digest for f in run.built if f.path in GLOBAL_STATES}
        for run in runs
        if run is not None
    ]
    if len(states) < 2:
        return []
    return [path for path in states[0] if states[0][path] == states[1].get(path)]


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (
    failed,
    workers_draw_differently,
    epochs_differ,
    stored_data_stays,
    seeds_matter,
    distributed.ranks_draw_differently,
)
