"""Completeness: every sample exactly once, true lengths, a second epoch that is not empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_dataloader.checks import distributed, reiteration
from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    Evidence,
    Question,
    samples_of,
    shown_path,
    shows_generator,
)
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    DatasetFacts,
    DifferenceFacts,
    EpochFacts,
    RunFacts,
    RunRequest,
)

_DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"


def needs(asked: Complete, question: Question) -> list[RunRequest]:
    """A run of several epochs, the same without workers: that is what the data is, and ranks."""
    alone = question.epochs(question.config.without_workers())
    others = [*distributed.needs(asked, question), *reiteration.needs(asked, question)]
    return [question.epochs(), alone, *others]


def failed(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """A later epoch that does not come to its end leaves nothing to judge."""
    run = evidence.get(evidence.question.epochs())
    if run is not None and not run.ok:
        yield NotJudged(f"a run of several epochs did not come to its end: {run.reason}")


def each_sample_once(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """An iterable dataset gives with workers what it gives without them, once."""
    run, alone = evidence.epochs, evidence.epochs_in_process
    if run is None or run.dataset is None or not run.dataset.iterable:
        return
    if alone is None:
        if evidence.config.has_workers:
            yield NotJudged("what the data is without workers is not known: that run fails")
        return
    if not evidence.config.has_workers:
        return
    got, truth = run.epochs[0], alone.epochs[0]
    if not truth.samples:
        return
    if _is_stable(alone) and _known(got) and _known(truth):
        yield from _by_identity(evidence, run, got, truth)
    else:
        yield from _by_count(evidence, run, got, truth)


def _known(epoch: EpochFacts) -> bool:
    return epoch.sample_ids is not None and None not in epoch.sample_ids


def _is_stable(alone: RunFacts) -> bool:
    """Whether samples can be told by their content: two epochs give the same ones.

    A second epoch that is empty says nothing against it.
    """
    first, second = alone.epochs[:2]
    return not second.batches or Counter(first.sample_ids) == Counter(second.sample_ids)


def _by_identity(
    evidence: Evidence, run: RunFacts, got: EpochFacts, truth: EpochFacts
) -> Iterator[Finding]:
    ours, wanted = Counter(got.sample_ids), Counter(truth.sample_ids)
    more, fewer = ours - wanted, wanted - ours
    again = Counter({identity: n for identity, n in more.items() if identity in wanted})
    if again:
        detail = f"{sum(again.values())} too many{_first(again, truth)}"
        yield _duplicated(evidence, run, got, truth, detail)
    if again != more:  # samples that only workers make: their content depends on who makes them
        yield from () if again else _by_count(evidence, run, got, truth)
    elif fewer:
        detail = f"{sum(fewer.values())} never came{_first(fewer, truth)}"
        yield _lost(evidence, run, got, truth, detail)


def _first(those: Counter[str | None], truth: EpochFacts) -> str:
    """The places of samples in the epoch without workers, in words."""
    places = [i for i, identity in enumerate(truth.sample_ids or ()) if identity in those]
    return f"; the first are samples {', '.join(map(str, places[:5]))}" if places else ""


def _by_count(
    evidence: Evidence, run: RunFacts, got: EpochFacts, truth: EpochFacts
) -> Iterator[Finding]:
    samples, wanted = got.samples or 0, truth.samples or 0
    if samples > wanted:
        yield _duplicated(evidence, run, got, truth, f"{samples - wanted} too many")
    elif samples < wanted:
        yield _lost(evidence, run, got, truth, f"{wanted - samples} never came")


def _duplicated(
    evidence: Evidence, run: RunFacts, got: EpochFacts, truth: EpochFacts, detail: str
) -> Finding:
    workers = evidence.config.num_workers or 1
    whole = got.samples == workers * (truth.samples or 0)
    why = ": every worker gives the whole stream" if whole and workers > 1 else ""
    message = (
        f"expected each of the {truth.samples} samples once, got {got.samples} samples under "
        f"{evidence.config.id}, {detail}{why}"
    )
    return _finding("duplicated-samples", ERROR, evidence, _place(run, "__iter__"), message)


def _lost(
    evidence: Evidence, run: RunFacts, got: EpochFacts, truth: EpochFacts, detail: str
) -> Finding:
    dropped = run.dataset is not None and run.dataset.drop_last
    why = ": drop_last drops each worker's last, smaller batch" if dropped else ""
    message = (
        f"expected each of the {truth.samples} samples once, got {got.samples} samples under "
        f"{evidence.config.id}, {detail}{why}"
    )
    severity = INFO if dropped else ERROR
    return _finding("lost-samples", severity, evidence, _place(run, "__iter__"), message)


def _place(run: RunFacts, method: str) -> str:
    """Where the dataset's method stands, or its name."""
    places = run.dataset.places if run.dataset is not None else {}
    return shown_path(places[method]) if method in places else f"dataset.{method}"


def epochs_come_again(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """A second epoch gives samples as the first one did."""
    run = evidence.epochs
    if run is None or run.dataset is None or not run.epochs[0].batches:
        return
    empty = [epoch.epoch for epoch in run.epochs[1:] if not epoch.batches]
    if not empty:
        return
    iterators = run.dataset.iterators
    why = f": {iterators[0]} is an iterator that the first epoch used up" if iterators else ""
    message = (
        f"expected about {run.epochs[0].samples} samples in each epoch, got none in epoch "
        f"{empty[0]}{why}"
    )
    culprit = iterators[0] if iterators else _place(run, "__iter__")
    yield _finding("empty-epoch", ERROR, evidence, culprit, message)


def lengths_are_true(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """``len(dataset)`` of an iterable dataset is the number of samples that come."""
    run = evidence.epochs
    if run is None or run.dataset is None or run.dataset.length is None:
        return
    if not run.dataset.iterable or evidence.config.has_workers or run.dataset.drop_last:
        return
    samples = run.epochs[0].samples
    if samples != run.dataset.length:
        message = f"expected len(dataset) = {run.dataset.length} samples, got {samples}"
        yield _finding("wrong-length", ERROR, evidence, _place(run, "__len__"), message)


def loader_gives_its_length(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """All batches that the sampler asks for come, and are as many as it says.

    A StopIteration ends an epoch without a word. One epoch is enough to see it, and often all
    there is: workers then end late.
    """
    run = evidence.epochs or evidence.base
    expected = run.expected_batches if run is not None else None
    if run is None or not run.ok or expected is None:
        return
    other = [epoch for epoch in run.epochs if epoch.batches != expected]
    cut = [epoch for epoch in other if epoch.batches < (epoch.asked or expected)]
    if cut:
        message = (
            f"expected {expected} batches as len(loader) says, got {cut[0].batches} in epoch "
            f"{cut[0].epoch} without an error: a StopIteration in the making of a sample or "
            "batch ends the epoch"
        )
        yield _finding("silent-truncation", ERROR, evidence, _place(run, "__getitem__"), message)
    elif other and other[0].asked is not None:
        yield _asks_otherwise(evidence, run, other[0])


def _asks_otherwise(evidence: Evidence, run: RunFacts, epoch: EpochFacts) -> Finding:
    """A sampler whose length is not the number of batches that it asks for."""
    always = len({one.batches for one in run.epochs}) == 1
    message = (
        f"expected {run.expected_batches} batches as len(loader) says, got {epoch.batches} in "
        f"epoch {epoch.epoch}: {run.order} asks for {epoch.asked}"
        + ("" if always else ", and for another number in other epochs")
    )
    return _finding("wrong-length", ERROR if always else WARNING, evidence, run.order, message)


def no_worker_is_idle(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """Each worker of an iterable dataset has samples to give, where there are enough."""
    run = evidence.epochs
    if run is None or run.dataset is None or not run.dataset.iterable:
        return
    workers, busy = evidence.config.num_workers or 0, len(run.epochs[0].worker_samples)
    if busy < workers <= (run.epochs[0].samples or 0):
        message = (
            f"expected {workers} workers to have samples, but only {busy} gave any of the "
            f"{run.epochs[0].samples}"
        )
        yield _finding("empty-worker", WARNING, evidence, _place(run, "__iter__"), message)


def epochs_reach_workers(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """What ``set_epoch`` sets on the dataset reaches persistent workers, which hold old copies."""
    run, alone = evidence.epochs, evidence.epochs_in_process
    if run is None or alone is None or run.dataset is None or not run.dataset.persistent:
        return
    if not run.epoch_fields or not evidence.config.has_workers:
        return
    same = samples_of(run.epochs[0]) == samples_of(run.epochs[1])
    differs = samples_of(alone.epochs[0]) != samples_of(alone.epochs[1])
    if same and differs:
        field = run.epoch_fields[0]
        message = (
            f"expected the second epoch to see what set_epoch(1) sets, but persistent workers keep "
            f"the {field} of their start: their epochs are the same, without workers they differ"
        )
        yield _finding("stale-worker-state", ERROR, evidence, field, message)


def workers_keep_what_they_change(
    evidence: Evidence, _asked: Complete
) -> Iterator[Finding | NotJudged]:
    """Counters and caches that samples change: with workers, each changes a copy of its own."""
    run, alone = evidence.epochs, evidence.epochs_in_process
    if run is None or alone is None or not evidence.config.has_workers:
        return
    here = {change.path for change in run.changed}
    kept = [d for d in alone.changed if d.path not in here and not _told_elsewhere(d, alone)]
    if kept:
        first = kept[0]
        also = f"; so are {', '.join(d.path for d in kept[1:4])}" if kept[1:] else ""
        message = (
            f"expected what is set as samples are made to be seen where it is read; {first.path} "
            f"goes from {first.parent} to {first.child} without workers, but workers change copies "
            f"of their own and the test process keeps {first.parent}{also}"
        )
        yield _finding("stale-worker-state", INFO, evidence, first.path, message)


def _told_elsewhere(change: DifferenceFacts, alone: RunFacts) -> bool:
    """Whether a change is a generator's state or stored data, of which seeding tells."""
    drawn = {one.path for one in alone.randomness}
    drifted = {one.path for one in alone.drifted}
    return change.path in drawn | drifted or shows_generator(change.child)


def sampler_covers_the_data(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """What a distributed sampler leaves to other ranks, or pads, is information."""
    run = evidence.epochs
    described: DatasetFacts | None = run.dataset if run is not None else None
    if run is None or described is None or described.sampler != _DISTRIBUTED:
        return
    indices = run.epochs[0].indices
    if indices is None or described.length is None:
        return
    left = described.length - len(set(indices))
    if left > 0:
        message = (
            f"expected {described.length} samples over all ranks; this rank gives {len(indices)}, "
            f"{left} are left to others"
        )
        yield _finding("lost-samples", INFO, evidence, "loader.sampler", message)


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (
    failed,
    each_sample_once,
    epochs_come_again,
    lengths_are_true,
    loader_gives_its_length,
    no_worker_is_idle,
    epochs_reach_workers,
    workers_keep_what_they_change,
    sampler_covers_the_data,
    distributed.ranks_share_the_data,
    *reiteration.CHECKS,
)
