"""Judges one pipeline under one configuration: observes what is needed, then runs the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_dataloader.checks.asked import Asked, NoRecursiveSpawn, Runs
from pytest_dataloader.checks.evidence import Evidence, Question, closing_seconds
from pytest_dataloader.checks.families import family_of
from pytest_dataloader.checks.finding import Finding, NotJudged, merged
from pytest_dataloader.checks.runs import SLOW_CLOSE_S
from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.observe import ranks
from pytest_dataloader.observe.facts import (
    GROWTH,
    HUNG,
    LEAKS,
    PERTURBED,
    REITERATE,
    RESUME,
    SCRIPT,
    TIMED,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline, Script

#: Passes whose epochs are no plain ones, and not told of in the report.
_UNREPORTED = (PERTURBED, GROWTH, LEAKS, RESUME, REITERATE)

#: How long a run beside one that hangs may give no batch, to tell whether it hangs too.
_COMPANION_S = 8.0
#: Budgets of what only a true start shows.
_OF_STARTS = ("max_startup_s", "max_worker_mb")
#: Passes of several epochs, whatever their requests say.
_EPOCHS = (GROWTH, LEAKS, RESUME, REITERATE, TIMED)


@dataclass(frozen=True)
class Verdict:
    """All findings of one configuration, what was not judged, and the runs it rests on."""

    findings: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    runs: tuple[RunFacts, ...]
    asked: tuple[str, ...]
    nothing_judged: bool = False


def judge(
    pipeline: Pipeline | Script,
    question: Question,
    asked: Sequence[Asked],
    observer: Observer,
    *,
    counts: Callable[[str], bool] = lambda _code: True,
    timed: bool = True,
    one_family: bool = False,
) -> Verdict:
    """Observe and judge.

    ``counts`` says which codes count, ``timed`` adds a pass for the report. A failed run is always
    a finding, except with ``one_family``: then another judgement of the same pipeline tells it,
    and what rests on the run is not judged.
    """
    asked = tuple(asked) if one_family else with_runs(asked, pipeline)
    if any(_is_about_starts(one) for one in asked):
        observer.start_truly(pipeline.key, question.config)
    pipeline = _in_a_job(pipeline, question, asked, observer)
    requests = _observe(pipeline, question, asked, observer, timed=timed)
    evidence = Evidence(question, _facts(pipeline, question, requests, observer))
    findings: list[Finding] = []
    not_judged: dict[str, set[str]] = {}
    for one in asked:
        name = family_of(one).name
        for found in _found(evidence, one):
            if isinstance(found, NotJudged):
                not_judged.setdefault(found.reason, set()).add(name)
            elif counts(found.code):
                findings.append(found)
    for name, reason in _left_out(evidence, asked):
        not_judged.setdefault(reason, set()).add(name)
    if one_family and not findings and evidence.base is not None and not evidence.base.ok:
        reason = f"the run did not come to its end: {evidence.base.reason}"
        not_judged[reason] = {family_of(one).name for one in asked}
    runs = [f for r, f in evidence.runs.items() if _reported(r, question)]
    names = dict.fromkeys(family_of(one).name for one in asked)
    silent = set().union(*not_judged.values()) >= {
        n for n in names if n != "runs" or len(names) == 1
    }
    return Verdict(
        tuple(merged(findings)),
        tuple(not_judged),
        tuple(runs),
        tuple(names),
        nothing_judged=bool(not_judged) and silent,
    )


def _is_about_starts(asked: Asked) -> bool:
    """Whether a start of its own is asked for: its seconds, or all the memory of a worker."""
    return any(getattr(asked, name, None) is not None for name in _OF_STARTS)


def _in_a_job(
    pipeline: Pipeline | Script, question: Question, asked: Iterable[Asked], observer: Observer
) -> Pipeline | Script:
    """The pipeline in a job of one rank, where it is asked about ranks and cannot be built
    without a job."""
    about_ranks = any(getattr(one, "world_size", None) for one in asked)
    if isinstance(pipeline, Script) or not about_ranks or question.config.num_workers is None:
        return pipeline
    base = observer.observe(pipeline, question.base())
    return pipeline.of_a_job() if ranks.lacks_a_job(base.error) else pipeline


def _facts(
    pipeline: Pipeline | Script,
    question: Question,
    requests: Iterable[RunRequest],
    observer: Observer,
) -> dict[RunRequest, RunFacts]:
    """The facts of all runs. After one of several epochs that hangs or whose workers do not end,
    the others would wait as long; beside a base run that hangs its companion may not do so."""
    facts: dict[RunRequest, RunFacts] = {}
    for request in sorted(requests, key=lambda r: r.purpose == TIMED):
        waited = [r for r, f in facts.items() if _waited(f)]
        if not (_goes_on(request) and any(_goes_on(r) for r in waited)):
            hung = question.base() in facts and facts[question.base()].outcome == HUNG
            at_most_s = _COMPANION_S if hung else None
            facts[request] = observer.observe(pipeline, request, at_most_s=at_most_s)
    return facts


def _waited(facts: RunFacts) -> bool:
    """Whether a run has waited for what did not come: a batch, or the end of its workers."""
    return facts.outcome == HUNG or closing_seconds(facts) > SLOW_CLOSE_S


def _goes_on(request: RunRequest) -> bool:
    """Whether a run comes to a second epoch."""
    return request.epochs > 1 or request.purpose in _EPOCHS


def _left_out(evidence: Evidence, asked: Iterable[Asked]) -> Iterator[tuple[str, str]]:
    """The families that lack runs, and why: a run took too long to end, or never did."""
    base = evidence.base
    if base is None or not base.ok:
        return
    seconds, why = (
        closing_seconds(base),
        "a run of several epochs hung or did not end, as others would",
    )
    if seconds > SLOW_CLOSE_S:
        why = f"its workers take {seconds:.3g} s to end, and would in every further run"
    for one in asked:
        family = family_of(one)
        needed = _unique(family.needs(one, evidence.question))
        if any(request not in evidence.runs for request in needed):
            yield family.name, why


def _found(evidence: Evidence, asked: Asked) -> Iterator[Finding | NotJudged]:
    for check in family_of(asked).checks:
        yield from check(evidence, asked)


def with_runs(asked: Sequence[Asked], pipeline: Pipeline | Script) -> tuple[Asked, ...]:
    """What is asked, and always that runs come to their end; a script is only run as such."""
    if isinstance(pipeline, Script):
        return tuple(one for one in asked if isinstance(one, NoRecursiveSpawn))
    if any(isinstance(one, Runs) for one in asked):
        return tuple(asked)
    return (Runs(), *asked)


def _reported(request: RunRequest, question: Question) -> bool:
    if request.purpose == SCRIPT:
        return True
    return request.config == question.config and request.purpose not in _UNREPORTED


def _observe(
    pipeline: Pipeline | Script,
    question: Question,
    asked: Iterable[Asked],
    observer: Observer,
    *,
    timed: bool,
) -> list[RunRequest]:
    """Run the base run, its companion if it fails, else all that the checks need."""
    if isinstance(pipeline, Script) or question.config.num_workers is None:
        return _unique(r for one in asked for r in family_of(one).needs(one, question))
    base = question.base()
    first = observer.observe(pipeline, base)
    if first.ok and closing_seconds(first) > SLOW_CLOSE_S:
        return [base]  # every further run would wait as long
    if not first.ok:
        companion = _companion(question)
        return [base] if companion is None else [base, question.base(companion)]
    requests = [base]
    if timed and not any(family_of(one).name == "throughput" for one in asked):
        requests.append(question.timed())
    return _unique([*requests, *(r for one in asked for r in family_of(one).needs(one, question))])


def _companion(question: Question) -> LoaderConfig | None:
    """The run that tells whether a failure is one of workers: 0 workers, or for 0 workers some."""
    if question.config.has_workers:
        return question.config.without_workers()
    return question.with_workers


def _unique(requests: Iterable[RunRequest]) -> list[RunRequest]:
    return [r for r in dict.fromkeys(requests) if not lacking(r.config)]
