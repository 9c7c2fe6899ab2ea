"""The steady rate: known intervals, known values; a clock that only the dataset moves."""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from pytest_dataloader.observe.rate import (
    NoRate,
    Repeating,
    alone_on_this_machine,
    measure,
    measure_stalls,
    percentile,
    summarise,
    summarise_stalls,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


class Timed(Dataset[int]):
    """Each sample takes ``seconds``; the first of all takes longer."""

    def __init__(self, clock: Clock, count: int, seconds: float, first_s: float = 50.0) -> None:
        self.clock = clock
        self.count = count
        self.seconds = seconds
        self.first_s = first_s
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.clock.now_s += self.seconds + self.first_s
        self.first_s = 0.0
        return index


class TimedStream(IterableDataset[int]):
    """Each epoch begins with ``start_s``, then samples of ``seconds`` each."""

    def __init__(self, clock: Clock, count: int, seconds: float, start_s: float) -> None:
        self.clock = clock
        self.count = count
        self.seconds = seconds
        self.start_s = start_s
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        self.clock.now_s += self.start_s
        for index in range(self.count):
            self.clock.now_s += self.seconds
            yield index


class Beats:
    def __init__(self) -> None:
        self.count = 0

    def beat(self) -> None:
        self.count += 1


# Known intervals -----------------------------------------------------------------------------


def test_even_intervals_have_no_spread() -> None:
    rate = summarise([0.5] * 20, 4)

    assert (rate.batches, rate.samples, rate.windows) == (20, 80, 10)
    assert rate.duration_s == pytest.approx(10.0)
    assert rate.batches_per_s == pytest.approx(2.0)
    assert rate.samples_per_s == pytest.approx(8.0)
    assert (rate.low, rate.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_three_intervals_by_hand() -> None:
    # Means 1, 2 and 3: standard deviation 1, and Student's t for 2 degrees of freedom is 4.303.
    rate = summarise([1.0, 2.0, 3.0], None)

    assert rate.batches_per_s == pytest.approx(0.5)
    assert rate.low == pytest.approx(1 / (2 + 4.303 / math.sqrt(3)))
    assert rate.high == math.inf
    assert (rate.samples, rate.samples_per_s, rate.windows) == (None, None, 3)


def test_ten_windows_by_hand() -> None:
    # Ten windows of two: five of mean 1 and five of mean 1.2; 2.262 for 9 degrees of freedom.
    rate = summarise([0.9, 1.1, 1.1, 1.3] * 5, 1)

    half = 2.262 * (0.1 * math.sqrt(10 / 9)) / math.sqrt(10)
    assert rate.batches_per_s == pytest.approx(1 / 1.1)
    assert rate.low == pytest.approx(1 / (1.1 + half))
    assert rate.high == pytest.approx(1 / (1.1 - half))


def test_only_whole_turns_of_the_workers_count() -> None:
    """Two workers deliver together: a batch after a wait and one at once, ten a second."""
    together = [0.2, 0.0] * 10
    for cut_off in ([], [0.2]):
        rate = summarise(together + cut_off, 1, turn=2)
        assert (rate.batches, rate.batches_per_s) == (20, pytest.approx(10))
        assert (rate.low, rate.high) == (pytest.approx(10), pytest.approx(10))


def test_too_few_turns_are_counted_by_batches() -> None:
    assert summarise([0.2, 0.0, 0.2], 1, turn=2).batches == 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_intervals_are_no_data(count: int) -> None:
    with pytest.raises(NoRate) as caught:
        summarise([1.0] * count, 1)

    assert str(caught.value) == f"the epoch gave {count} batches after the start; a rate needs 3"


@given(st.lists(st.floats(0, 100), min_size=3, max_size=50), st.sampled_from([None, 1, 7]))
def test_the_rate_lies_in_its_interval(intervals: list[float], samples: int | None) -> None:
    rate = summarise(intervals, samples)

    assert 0 < rate.low <= rate.batches_per_s <= rate.high
    assert rate.windows == min(10, len(intervals))
    assert rate.samples == (None if samples is None else samples * len(intervals))


def test_the_share_of_waiting_by_hand() -> None:
    # Five windows of four: shares 1/4 and 3/4 in turns but for the last; 2.776 for 4 degrees.
    stall = summarise_stalls(30, ([1.0] * 4 + [9.0] * 4) * 2 + [3.0] * 4, [3.0] * 20)

    assert (stall.batches, stall.windows, stall.step_ms) == (20, 5, 30)
    assert stall.share == pytest.approx(92 / 152)
    shares = [0.25, 0.75, 0.25, 0.75, 0.5]
    assert stall.high - stall.share == pytest.approx(2.776 * statistics.stdev(shares) / 5**0.5)
    assert (stall.wait_p50_s, stall.wait_p99_s) == (3.0, 9.0)


def test_a_share_needs_two_windows() -> None:
    with pytest.raises(NoRate, match="gave 7 batches after the start; a share needs 8"):
        summarise_stalls(30, [1.0] * 7, [1.0] * 7)


def test_a_share_lies_between_0_and_1() -> None:
    stall = summarise_stalls(30, [0.0] * 8, [1.0] * 8)
    assert (stall.low, stall.share, stall.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (75, 3.0), (76, 4.0), (99, 4.0)])
def test_percentiles(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


# A sampler without an end --------------------------------------------------------------------


def test_repeating_begins_again() -> None:
    assert list(itertools.islice(Repeating([1, 2]), 5)) == [1, 2, 1, 2, 1]
    assert len(Repeating([1, 2])) == 2


def test_repeating_nothing_ends() -> None:
    assert list(Repeating([])) == []


# Timed passes --------------------------------------------------------------------------------


def test_a_map_style_dataset_is_read_again_and_again() -> None:
    clock, beats = Clock(), Beats()
    dataset = Timed(clock, 6, 0.25)
    loader = DataLoader(dataset, batch_size=2)

    rate = measure(loader, 10.0, clock.now, beats.beat)

    assert (rate.batches, rate.samples) == (10, 20)  # as many as there are windows: all are alike
    assert rate.batches_per_s == pytest.approx(2.0)
    assert rate.samples_per_s == pytest.approx(4.0)
    assert rate.duration_s == pytest.approx(5.0)
    assert dataset.epochs == [0]
    assert beats.count == 2


@pytest.mark.parametrize(
    ("kwargs", "samples"),
    [
        ({"batch_size": None}, 10),
        ({"batch_size": 1}, 10),
    ],
)
def test_single_samples(kwargs: dict[str, Any], samples: int) -> None:
    clock = Clock()

    rate = measure(DataLoader(Timed(clock, 3, 0.5), **kwargs), 10.0, clock.now, Beats().beat)

    assert rate.samples == samples
    assert rate.batches_per_s == pytest.approx(2.0)


def test_batches_of_a_sampler_of_the_users_have_no_known_size() -> None:
    clock = Clock()
    dataset = Timed(clock, 6, 0.25)
    sampler = BatchSampler(SequentialSampler(dataset), 2, drop_last=False)

    rate = measure(DataLoader(dataset, batch_sampler=sampler), 5.0, clock.now, Beats().beat)

    assert rate.batches_per_s == pytest.approx(2.0)
    assert (rate.samples, rate.samples_per_s) == (None, None)


def test_a_slow_loader_gets_longer_for_the_fewest_batches() -> None:
    clock = Clock()

    rate = measure(DataLoader(Timed(clock, 99, 0.5)), 1.0, clock.now, Beats().beat)

    assert rate.batches == 8


def test_a_very_slow_loader_gets_five_times_as_long() -> None:
    clock = Clock()

    rate = measure(DataLoader(Timed(clock, 99, 1.5)), 1.0, clock.now, Beats().beat)

    assert rate.batches == 4
    assert rate.batches_per_s == pytest.approx(1 / 1.5)


def test_the_slowest_loader_has_no_rate() -> None:
    clock = Clock()

    with pytest.raises(NoRate) as caught:
        measure(DataLoader(Timed(clock, 99, 3.0)), 1.0, clock.now, Beats().beat)

    assert str(caught.value) == "the epoch gave 2 batches after the start; a rate needs 3"


def test_a_stream_is_read_epoch_after_epoch_without_its_starts() -> None:
    clock = Clock()
    dataset = TimedStream(clock, 5, 0.5, start_s=0.3)

    rate = measure(DataLoader(dataset, batch_size=None), 4.0, clock.now, Beats().beat)

    assert rate.batches_per_s == pytest.approx(2.0)
    assert rate.batches == 8
    assert dataset.epochs == [0, 1]


@pytest.mark.parametrize("count", [0, 1])
def test_an_epoch_too_short_to_time_has_no_rate(count: int) -> None:
    clock = Clock()
    loader = DataLoader(TimedStream(clock, count, 0.5, start_s=0.3), batch_size=None)

    with pytest.raises(NoRate) as caught:
        measure(loader, 4.0, clock.now, Beats().beat)

    assert str(caught.value) == "the epoch gave 0 batches after the start; a rate needs 3"


def test_a_busy_consumer_waits_for_what_takes_longer(monkeypatch) -> None:
    clock = Clock()
    ticking = itertools.count()
    monkeypatch.setattr("pytest_dataloader.observe.rate.time.sleep", lambda seconds: None)

    def now() -> float:  # the spinning consumer needs a clock that goes on by itself
        clock.now_s += 0.001 * (next(ticking) % 2)
        return clock.now_s

    loader = DataLoader(Timed(clock, 9, 0.3))
    stall = measure_stalls(loader, 100, 3.0, now, Beats().beat)

    assert stall.share == pytest.approx(0.75, abs=0.01)
    assert stall.batches == 8
    assert stall.wait_p50_s == pytest.approx(0.3, abs=0.01)


def test_what_the_loader_raises_is_raised() -> None:
    clock = Clock()

    with pytest.raises(ZeroDivisionError):
        measure(
            DataLoader(Timed(clock, 9, 1.0), collate_fn=lambda batch: 1 // 0),
            1.0,
            clock.now,
            Beats().beat,
        )


# One at a time -------------------------------------------------------------------------------


def test_another_process_waits_for_its_turn() -> None:
    code = (
        "from pytest_dataloader.observe.rate import alone_on_this_machine\n"
        "print('asks', flush=True)\n"
        "with alone_on_this_machine():\n"
        "    print('alone', flush=True)\n"
    )
    with alone_on_this_machine():
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)

    assert other.communicate(timeout=20) == ("alone\n", None)
    assert other.returncode == 0


@pytest.mark.parametrize(("given", "taken"), [(3.0, 1.0), (0.5, 0.2)])
def test_a_pass_ends_when_its_interval_is_narrow(given, taken) -> None:
    clock = Clock()
    even = DataLoader(Timed(clock, 1000, 0.01), batch_size=1)
    found = measure(even, given, clock.now, lambda: None)
    assert found.duration_s == pytest.approx(taken, abs=0.02)


@pytest.mark.parametrize(
    ("budget", "seconds"), [(20.0, 0.2), (25.0, 1.0), (400.0, 0.2), (200.0, 1.0), (60.0, 3.0)]
)
def test_a_pass_ends_when_its_budget_is_clearly_met_or_missed(budget, seconds) -> None:
    clock = Clock()
    uneven = DataLoader(Uneven(clock, 1000, 0.01), batch_size=1)
    found = measure(uneven, 3.0, clock.now, lambda: None, budget)
    assert found.duration_s == pytest.approx(seconds, abs=0.06)


def test_a_pass_with_a_wide_interval_takes_its_time() -> None:
    clock = Clock()
    uneven = DataLoader(Uneven(clock, 1000, 0.01), batch_size=1)
    assert measure(uneven, 3.0, clock.now, lambda: None).duration_s >= 3.0


class Uneven(Timed):
    """Slower and slower: no window is like another."""

    def __getitem__(self, index: int) -> int:
        self.seconds *= 1.01
        return super().__getitem__(index)
