"""The judge: what it has observed, what it makes of it, and when nothing could be judged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dataloader.checks.asked import (
    Complete,
    Deterministic,
    Memory,
    NoRecursiveSpawn,
    Picklable,
    Runs,
    Throughput,
)
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.judge import judge, with_runs
from pytest_dataloader.matrix import START_METHODS, LoaderConfig
from pytest_dataloader.observe.facts import (
    CONTENT,
    SCRIPT,
    TIMED,
    EpochFacts,
    ErrorFacts,
    RateFacts,
    RunFacts,
    RunRequest,
    UnpicklableFacts,
)
from pytest_dataloader.pipeline import Script

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)
MATRIX = (W0, FORK, SPAWN)

PIPELINE: Any = SimpleNamespace(key="p")
RATE = RateFacts(100, 400, 2.0, 50.0, 45.0, 55.0, 200.0, 10)
BAD_RECORD = ErrorFacts("iterate", "ValueError", "bad record", "")


@pytest.fixture(autouse=True)
def every_start_method_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_dataloader.matrix.available_start_methods", lambda: START_METHODS)


def epoch(digest: str, not_compared: tuple[str, ...] = ()) -> EpochFacts:
    return EpochFacts(0, 1, 4, digest, digest, (), (), (), not_compared)


class FakeObserver:
    """Gives written facts: a sound run, unless told otherwise; notes what was asked, once each."""

    def __init__(self, *told: RunFacts) -> None:
        self.told = {facts.request: facts for facts in told}
        self.asked: dict[RunRequest, None] = {}
        self.truly: list[LoaderConfig] = []
        self.limits: list[float | None] = []

    def observe(
        self, pipeline: Any, request: RunRequest, at_most_s: float | None = None
    ) -> RunFacts:
        self.limits.append(at_most_s)
        self.pipeline = pipeline
        self.asked[request] = None
        rate = RATE if request.purpose == TIMED else None
        sound = RunFacts(request, "true", "ok", epochs=(epoch("same"),), rate=rate)
        return self.told.get(request, sound)

    def start_truly(self, _key: Any, config: LoaderConfig) -> None:
        self.truly.append(config)

    @property
    def ran(self) -> list[tuple[str, int, int, str]]:
        return [(r.config.id, r.seed, r.repeat, r.purpose) for r in self.asked]


def failed(config: LoaderConfig, **facts: Any) -> RunFacts:
    facts = {"outcome": "raised", "reason": "ValueError: bad record", "error": BAD_RECORD, **facts}
    return RunFacts(RunRequest(config), "true", **facts)


def judged(observer: Any, *asked: Any, config: LoaderConfig = SPAWN, **options: Any) -> Any:
    return judge(PIPELINE, Question(config, MATRIX), asked, observer, **options)


def codes(verdict: Any) -> list[str]:
    return [finding.code for finding in verdict.findings]


# What is observed --------------------------------------------------------------------------------


def test_a_sound_run_is_the_base_run_and_a_timed_pass_for_the_report() -> None:
    observer = FakeObserver()
    verdict = judged(observer)
    assert observer.ran == [("spawn-w2", 0, 0, CONTENT), ("spawn-w2", 0, 0, TIMED)]
    assert observer.pipeline is PIPELINE
    assert (verdict.findings, verdict.not_judged, verdict.asked) == ((), (), ("runs",))
    assert [run.request.purpose for run in verdict.runs] == [CONTENT, TIMED]
    assert not verdict.nothing_judged


def test_no_timed_pass_is_run_where_none_is_wanted() -> None:
    observer = FakeObserver()
    judged(observer, timed=False)
    assert observer.ran == [("spawn-w2", 0, 0, CONTENT)]


def test_a_question_of_throughput_brings_its_own_timed_passes() -> None:
    observer = FakeObserver()
    verdict = judged(observer, Throughput(min_speedup=0.5))
    assert [(r.config.id, r.purpose, r.seconds) for r in observer.asked] == [
        ("spawn-w2", CONTENT, 1.0),
        ("spawn-w2", TIMED, 3.0),
        ("w0", TIMED, 3.0),
    ]
    assert [run.config.id for run in verdict.runs] == ["spawn-w2", "spawn-w2"]


@pytest.mark.parametrize(
    ("asked", "truly"),
    [
        (Throughput(max_startup_s=3), [SPAWN]),
        (Memory(max_worker_mb=100), [SPAWN]),
        (Throughput(min_batches_per_s=3), []),
        (Memory(), []),
    ],
)
def test_what_only_a_true_start_shows_needs_one(asked, truly) -> None:
    observer = FakeObserver()
    judged(observer, asked)
    assert observer.truly == truly


def test_each_thing_that_several_questions_need_is_asked_once() -> None:
    observer = FakeObserver()
    verdict = judged(observer, Picklable(), Deterministic(), timed=False)
    assert observer.ran == [
        ("spawn-w2", 0, 0, CONTENT),
        ("fork-w2", 0, 0, CONTENT),
        ("spawn-w2", 0, 1, CONTENT),
        ("w0", 0, 0, CONTENT),
        ("spawn-w2", 1, 0, CONTENT),
        ("spawn-w2", 1, 1, CONTENT),
        ("fork-w2", 1, 0, CONTENT),
        ("w0", 1, 0, CONTENT),
    ]
    assert verdict.asked == ("runs", "picklability", "determinism")
    told = [(run.config.id, run.request.seed, run.request.repeat) for run in verdict.runs]
    assert told == [("spawn-w2", 0, 0), ("spawn-w2", 0, 1), ("spawn-w2", 1, 0), ("spawn-w2", 1, 1)]


def test_what_the_platform_lacks_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = FakeObserver()
    monkeypatch.setattr("pytest_dataloader.matrix.available_start_methods", lambda: ("spawn",))
    judged(observer, Deterministic(seeds=(0,)), timed=False)
    assert {request.config for request in observer.asked} == {SPAWN, W0}


@pytest.mark.parametrize(("config", "companion"), [(SPAWN, "w0"), (W0, "fork-w2")])
def test_a_run_that_fails_is_only_compared_with_its_companion(config, companion) -> None:
    observer = FakeObserver(failed(config))
    verdict = judged(observer, Deterministic(), Throughput(min_speedup=2), config=config)
    assert observer.ran == [(config.id, 0, 0, CONTENT), (companion, 0, 0, CONTENT)]
    code = "fails-with-workers" if config == SPAWN else "fails-without-workers"
    assert codes(verdict) == [code]
    assert [run.config for run in verdict.runs] == [config]


def test_beside_a_run_that_hangs_its_companion_may_not_take_as_long() -> None:
    observer = FakeObserver(failed(SPAWN, outcome="hung", reason="no batch for 60 s", error=None))
    judged(observer)
    assert observer.limits == [None, None, 8.0]
    assert [config for config, *_ in observer.ran] == ["spawn-w2", "w0"]


def test_without_workers_in_the_matrix_a_failure_has_no_companion() -> None:
    observer = FakeObserver(failed(W0))
    verdict = judge(PIPELINE, Question(W0, (W0,)), (), observer)
    assert observer.ran == [("w0", 0, 0, CONTENT)]
    assert codes(verdict) == ["raises"]


# Findings ----------------------------------------------------------------------------------------


def test_runs_are_judged_whatever_was_asked() -> None:
    asked = (Picklable(), Deterministic())
    assert with_runs(asked, PIPELINE) == (Runs(), *asked)
    assert with_runs((Deterministic(), Runs()), PIPELINE) == (Deterministic(), Runs())
    assert with_runs((), PIPELINE) == (Runs(),)


def test_what_two_families_find_is_one_finding() -> None:
    part = UnpicklableFacts("dataset.clean", "a lambda", "no")
    error = ErrorFacts("start", "PicklingError", "no", "")
    observer = FakeObserver(failed(SPAWN, error=error, unpicklable=(part,)))
    verdict = judged(observer, Picklable())
    assert [(finding.code, finding.culprit) for finding in verdict.findings] == [
        ("unpicklable", "dataset.clean")
    ]
    assert verdict.asked == ("runs", "picklability")


def test_codes_that_do_not_count_are_left_out() -> None:
    seen = []

    def counts(code: str) -> bool:
        seen.append(code)
        return False

    verdict = judged(FakeObserver(failed(SPAWN)), counts=counts)
    assert (seen, verdict.findings) == (["fails-with-workers"], ())
    assert not verdict.nothing_judged


def test_errors_stand_first() -> None:
    base = RunFacts(
        RunRequest(SPAWN), "true", "ok", epochs=(epoch("same"),), travel_bytes=9 * 2**20
    )
    again = replace(base, request=RunRequest(SPAWN, repeat=1), epochs=(epoch("other"),))
    verdict = judged(FakeObserver(base, again), Picklable(), Deterministic(seeds=(0,)))
    assert codes(verdict) == ["not-repeatable", "heavy-pickle", "copied-per-worker"]
    assert [finding.severity for finding in verdict.findings] == ["error", "warning", "warning"]


# What is not judged ------------------------------------------------------------------------------

NO_START = "seconds to the first batch: there was no first batch"
NOT_COMPARED = "not compared: words.Token in the batches has no content to digest"
TOKENS = [
    RunFacts(
        RunRequest(SPAWN, repeat=repeat), "true", "ok", epochs=(epoch("same", ("words.Token",)),)
    )
    for repeat in (0, 1)
]


def test_a_question_that_could_not_be_judged_leaves_nothing_judged() -> None:
    verdict = judged(FakeObserver(), Throughput(max_startup_s=1))
    assert (verdict.findings, verdict.not_judged) == ((), (NO_START,))
    assert verdict.nothing_judged


def test_one_question_of_two_that_could_be_judged_is_judged() -> None:
    verdict = judged(FakeObserver(), Throughput(max_startup_s=1), Picklable())
    assert verdict.not_judged == (NO_START,)
    assert not verdict.nothing_judged


def test_two_questions_that_could_not_be_judged_leave_nothing_judged() -> None:
    verdict = judged(FakeObserver(*TOKENS), Throughput(max_startup_s=1), Deterministic((0,)))
    assert verdict.not_judged == (NO_START, NOT_COMPARED)
    assert verdict.nothing_judged


def test_a_reason_is_told_once() -> None:
    verdict = judged(FakeObserver(*TOKENS), Deterministic((0, 0)))
    assert verdict.not_judged == (NOT_COMPARED,)


# One family of several judgements ----------------------------------------------------------------

NOT_THE_END = "the run did not come to its end: ValueError: bad record"


def test_a_family_that_rests_on_a_failed_run_is_not_judged() -> None:
    verdict = judged(FakeObserver(failed(SPAWN)), Deterministic(), one_family=True)
    assert (verdict.findings, verdict.not_judged) == ((), (NOT_THE_END,))
    assert verdict.asked == ("determinism",)
    assert verdict.nothing_judged


def test_the_family_of_runs_tells_the_failed_run() -> None:
    verdict = judged(FakeObserver(failed(SPAWN)), Runs(), one_family=True)
    assert codes(verdict) == ["fails-with-workers"]
    assert (verdict.not_judged, verdict.nothing_judged) == ((), False)


def test_a_family_of_a_sound_run_is_judged_alone() -> None:
    verdict = judged(FakeObserver(), Deterministic(), one_family=True)
    assert (verdict.findings, verdict.not_judged) == ((), ())
    assert (verdict.asked, verdict.nothing_judged) == (("determinism",), False)


def test_what_further_runs_would_have_told_is_not_judged_where_workers_end_late() -> None:
    late = RunFacts(RunRequest(SPAWN), "true", "ok", epochs=(epoch("same"),), close_s=10.25)
    observer = FakeObserver(late)
    verdict = judged(observer, Deterministic(), one_family=True)
    assert verdict.not_judged == ("its workers take 10.2 s to end, and would in every further run",)
    assert verdict.nothing_judged
    assert observer.ran == [("spawn-w2", 0, 0, CONTENT)]


def test_after_a_run_of_several_epochs_that_hangs_no_other_is_made() -> None:
    hung = RunFacts(Question(SPAWN, MATRIX).epochs(), "warm", "hung", "no batch for 4 s")
    observer = FakeObserver(hung)
    verdict = judged(observer, Complete(), Deterministic(), timed=False)
    assert [(r.purpose, r.epochs) for r in observer.asked if r.epochs > 1] == [(CONTENT, 3)]
    assert {r.purpose for r in observer.asked} == {CONTENT}
    assert "a run of several epochs hung or did not end, as others would" in verdict.not_judged


# Scripts -----------------------------------------------------------------------------------------

ASKED = NoRecursiveSpawn("train.py", ("--fast",))
BY_METHOD = LoaderConfig("spawn", None)
SCRIPT_REQUEST = RunRequest(BY_METHOD, purpose=SCRIPT, script="train.py", args=("--fast",))


def test_a_script_is_only_run_as_such() -> None:
    observer: Any = FakeObserver()
    script = Script("check:train.py", "train.py", ("--fast",))
    assert with_runs((Runs(), ASKED), script) == (ASKED,)
    verdict = judge(script, Question(BY_METHOD, (BY_METHOD,)), (Runs(), ASKED), observer)
    assert list(observer.asked) == [SCRIPT_REQUEST]
    assert (verdict.findings, verdict.asked) == ((), ("spawning",))
    assert [run.request for run in verdict.runs] == [SCRIPT_REQUEST]


def test_a_script_that_fails_is_found_and_told_with_its_run() -> None:
    run = RunFacts(SCRIPT_REQUEST, "true", "hung", "no end within 60 s")
    observer: Any = FakeObserver(run)
    script = Script("check:train.py", "train.py", ("--fast",))
    verdict = judge(script, Question(BY_METHOD, (BY_METHOD,)), (ASKED,), observer, one_family=True)
    assert codes(verdict) == ["hang"]
    assert (verdict.runs, verdict.not_judged) == ((run,), ())


def test_a_script_beside_a_pipeline_is_told_with_the_pipeline_s_runs() -> None:
    observer = FakeObserver()
    verdict = judged(observer, ASKED, timed=False)
    assert list(observer.asked) == [RunRequest(SPAWN), SCRIPT_REQUEST]
    assert [run.request for run in verdict.runs] == [RunRequest(SPAWN), SCRIPT_REQUEST]
