"""Advice: a sweep over measurements of a known truth, and one for real."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader import advise
from pytest_dataloader.advise import Sweep, better, recommend, recommended_num_workers
from pytest_dataloader.diagnose import machine
from pytest_dataloader.matrix import LoaderConfig, default_start_method
from pytest_dataloader.observe.facts import (
    TIMED,
    MachineFacts,
    RateFacts,
    RunFacts,
    RunRequest,
    StorageFacts,
)
from pytest_dataloader.pipeline import TargetError

HERE = default_start_method()
GIB = 2**30


def rate(per_s: float, noise: float = 0.02, **more: Any) -> RateFacts:
    low, high = per_s * (1 - noise), per_s * (1 + noise)
    return RateFacts(100, 400, 1.0, per_s, low, high, None, 10, **more)


class Measuring:
    """Gives the rates of a known truth, and notes what was measured."""

    def __init__(self, truth: Callable[[LoaderConfig, int], RateFacts | None]) -> None:
        self.truth = truth
        self.asked: list[str] = []
        self.now_s = 0.0

    def __call__(self, config: LoaderConfig, repeat: int, starts: bool) -> RunFacts:
        self.asked.append(config.id + " again" * repeat)
        self.now_s += 1.0
        found = self.truth(config, repeat)
        request = RunRequest(config, purpose=TIMED)
        return RunFacts(request, "warm", "ok", rate=found, no_rate_reason="it raised ValueError")


def swept(
    truth: Callable[[LoaderConfig, int], RateFacts | None],
    *,
    cpus: int = 8,
    methods: tuple[str, ...] = (HERE,),
    budget_s: float = 1000.0,
) -> tuple[advise.Recommendation, list[str]]:
    measure = Measuring(truth)
    found = Sweep(measure, budget_s=budget_s, now=lambda: measure.now_s).run(methods, cpus)
    return found, measure.asked


@pytest.mark.parametrize(
    ("candidate", "simpler", "told"),
    [
        (rate(20), rate(10), True),
        (rate(10.6), rate(10), True),
        (rate(10.4, 0.001), rate(10, 0.001), False),
        (rate(20, 0.5), rate(10, 0.5), False),
        (rate(9), rate(10), False),
    ],
)
def test_better_is_beyond_noise_and_worth_it(candidate, simpler, told) -> None:
    assert better(candidate, simpler) is told


def test_workers_are_added_until_more_does_not_help() -> None:
    def truth(config: LoaderConfig, repeat: int) -> RateFacts:
        return rate({0: 10, 1: 10, 2: 20}.get(config.num_workers or 0, 21), 0.03, restart_s=0.1)

    found, asked = swept(truth)
    assert found.arguments == {"num_workers": 2}
    method = f"{HERE}-w"
    assert asked == [
        "w0",
        f"{method}1",
        f"{method}2",
        "w0 again",
        f"{method}2 again",
        f"{method}4",
        f"{method}8",
        f"{method}2-prefetch4",
        f"{method}2-restarted",
        f"{method}2-persistent",
    ]
    assert found.code == "DataLoader(dataset, ..., num_workers=2)"
    assert found.why[:3] == (
        f"{method}1: 10 batches/s, not measurably better than the 10 of w0",
        f"{method}2: 20 batches/s, better than the 10 of w0",
        f"{method}4: 21 batches/s, within the noise of the 20 of {method}2",
    )


def test_nothing_is_recommended_where_workers_cost_more_than_they_give() -> None:
    found, asked = swept(lambda config, repeat: rate(1000 if config.num_workers == 0 else 100))
    assert found.arguments == {"num_workers": 0}
    assert asked == ["w0", f"{HERE}-w1", f"{HERE}-w2"]


def test_what_was_better_only_once_is_not_recommended() -> None:
    def truth(config: LoaderConfig, repeat: int) -> RateFacts:
        return rate(20 if config.num_workers and not repeat else 10)

    found, _ = swept(truth, cpus=1)
    assert found.arguments == {"num_workers": 0}
    assert found.why == (f"{HERE}-w1: better than w0 once, but not again",)


def test_a_loader_that_waits_may_get_more_workers_than_cpus() -> None:
    def truth(config: LoaderConfig, repeat: int) -> RateFacts:
        return rate(10 * max(config.num_workers or 1, 1), blocked_share=0.9)

    found, _ = swept(truth, cpus=2)
    assert found.arguments == {"num_workers": 8}


def test_prefetch_start_method_and_persistence_where_they_help() -> None:
    def truth(config: LoaderConfig, repeat: int) -> RateFacts:
        value = 20.0 if config.num_workers else 10.0
        value += 10 * ((config.prefetch_factor or 2) == 4)
        value += 10 * (config.start_method == "other")
        return rate(value, restart_s=0.01 if config.persistent_workers else 2.0)

    found, _ = swept(truth, cpus=1, methods=(HERE, "other"))
    assert found.arguments == {
        "num_workers": 1,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "multiprocessing_context": "other",
    }
    assert found.why[-1] == (
        "persistent_workers=True: a further epoch's first batch comes after 0.01 s, not 2 s"
    )


def test_the_budget_of_time_ends_a_sweep() -> None:
    found, asked = swept(lambda config, repeat: rate(10 + 10 * config.num_workers), budget_s=2.0)
    assert asked == ["w0", f"{HERE}-w1"]
    assert found.arguments == {"num_workers": 0}
    assert found.why[-1] == "the time of 2 s was up before all was measured"


def test_a_loader_that_only_works_with_workers() -> None:
    found, _ = swept(lambda config, repeat: rate(10) if config.num_workers else None, cpus=1)
    assert found.arguments == {"num_workers": 1}
    assert found.why[0] == "w0: it raised ValueError"


def test_the_curve_as_a_table_with_a_chart() -> None:
    found, _ = swept(
        lambda config, repeat: rate(20000 if config.num_workers == 0 else 1234.5), cpus=1
    )
    assert list(found.lines()) == [
        "configuration  batches/s     95 % interval  first batch  next epoch",
        "w0                20,000  19,600 to 20,400            -           -  " + "#" * 24,
        f"{HERE}-w1            1,234    1,210 to 1,259            -           -  #",
        "recommended: DataLoader(dataset, ..., num_workers=0)",
        f"  {HERE}-w1: 1,234 batches/s, not measurably better than the 20,000 of w0",
    ]
    assert found.to_dict()["curve"][0]["batches_per_s"] == 20000


# The starting guess --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "place", "count"),
    [
        (MachineFacts("Linux", cpus_allowed=8, memory_bytes=64 * GIB), None, 7),
        (MachineFacts("Linux", cpus_allowed=2, memory_bytes=64 * GIB), None, 2),
        (MachineFacts("Linux", cpus_allowed=128, memory_bytes=900 * GIB), None, 16),
        (MachineFacts("Linux", cpus_allowed=8, memory_limit_bytes=3 * GIB), None, 3),
        (MachineFacts("Linux", cpus_allowed=8, memory_bytes=GIB // 2), None, 1),
        (MachineFacts("Linux", cpus_allowed=8), machine.ROTATING, 2),
        (MachineFacts("Linux", cpus_allowed=8), machine.NETWORK, 4),
        (MachineFacts("Linux", cpus_allowed=8), machine.LOCAL, 7),
        (MachineFacts("Linux"), None, 1),
    ],
)
def test_a_guess_from_machine_facts(monkeypatch, facts, place, count) -> None:
    monkeypatch.setattr(machine, "facts", lambda: facts)
    monkeypatch.setattr(machine, "place_of", lambda path: StorageFacts("", path, "", place))
    assert recommended_num_workers(None if place is None else "/data") == count


# For real ------------------------------------------------------------------------------------


class Sleeps(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


@pytest.mark.skipif(HERE != "fork", reason="forked workers start at once")
def test_a_loader_that_sleeps_gets_workers(monkeypatch) -> None:
    monkeypatch.setattr(advise, "PASS_S", 0.05)
    monkeypatch.setattr(advise, "_WAITING_A_CPU", 2)
    monkeypatch.setattr(advise, "_PREFETCH", ())
    found = recommend(DataLoader(Sleeps(), batch_size=2), max_workers=1, budget_s=60)
    # on a busy machine two workers may be within the noise of none, but a fetch waits on any
    assert [one.config.id for one in found.curve[:3]] == ["w0", "fork-w1", "fork-w2"]
    alone = found.curve[0].rate
    assert alone is not None
    assert alone.blocked_share is not None
    assert alone.blocked_share > 0.6
    assert alone.first_batch_s is not None
    assert f"num_workers={found.config.num_workers}" in str(found)


def test_a_script_has_no_loader(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(TargetError, match="a script has no loader to recommend arguments for"):
        recommend(str(script))
