"""The steady rate of a loader: a timed pass that carries nothing but the clock."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pytest_dataloader.observe import making
from pytest_dataloader.observe.epoch import set_epoch
from pytest_dataloader.observe.facts import RateFacts, StallFacts

_WINDOWS = 10
_FEWEST_BATCHES = 8
# A pass ends before its time when the whole 95 % interval is this share of the rate.
# The first look is after a second, or in a shorter pass, which may be rougher, earlier.
_NARROW, _FIRST_LOOK_S, _LOOK_EVERY_S = 0.04, 1.0, 0.5
_ROUGH, _ROUGH_FIRST_LOOK_S, _ROUGH_LOOK_EVERY_S = 0.1, 0.2, 0.1
# Or when the whole interval lies this many times off the budget; the second, from the start on.
_CLEAR, _FAR = 2.0, 4.0
_SLOW_FACTOR = 5.0
_BATCHES_A_WINDOW = 4
_SPIN_S = 0.0005
_POLL_S = 0.02
# Two-sided 95 % quantiles of Student's t for 1 to 9 degrees of freedom (any table of it).
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class NoRate(Exception):
    """There is no data for a rate; the message says why."""


class Repeating:
    """A sampler that begins again for ever, so that workers stay while the clock runs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        while True:
            count = 0
            for item in self.inner:
                count += 1
                yield item
            if not count:
                return

    def __len__(self) -> int:
        return len(self.inner)


def measure(
    loader: Any,
    seconds: float,
    now: Callable[[], float],
    beat: Callable[[], None],
    budget: float | None = None,
) -> RateFacts:
    """Time batches for ``seconds``, from after every worker has delivered; from one second on only
    until the interval of the rate is narrow, or at a distance from the budget, in batches per
    second; where that is four times the budget or a quarter of it, from 0.2 s on. A pass of less
    than a second may end after 0.2 s, with an interval of at most 10 % of the rate.

    A map-style dataset is read through its sampler again and again; an iterable one epoch after
    epoch with its workers kept. Slow loaders get up to five times as long, to yield at least
    eight batches. Raises `NoRate`, and what the loader raises.
    """
    timer = _Timer(seconds, now, beat, budget=budget, turn=max(loader.num_workers, 1))
    began = making.moment()
    _run(loader, timer)
    wall_s, cpu_s, queued_s = making.since(began)
    found = summarise(timer.intervals, _samples_a_batch(loader), timer.turn)
    blocked = max(0.0, wall_s - cpu_s - queued_s) / max(wall_s, sys.float_info.epsilon)
    alone = loader.num_workers == 0
    return replace(found, first_batch_s=timer.first_s, blocked_share=blocked if alone else None)


def restart_s(loader: Any, now: Callable[[], float], beat: Callable[[], None]) -> float:
    """Seconds to the first batch of a further epoch, after `measure`."""
    beat()
    began = now()
    for _ in loader:
        break
    return now() - began


def measure_stalls(
    loader: Any,
    step_ms: float,
    seconds: float,
    now: Callable[[], float],
    beat: Callable[[], None],
) -> StallFacts:
    """Time the waits of a consumer that is busy for ``step_ms`` after each batch, as `measure`."""
    timer = _Timer(seconds, now, beat, lambda: _be_busy(step_ms / 1000, now))
    _run(loader, timer)
    return summarise_stalls(step_ms, timer.intervals, timer.busy)


def _be_busy(seconds: float, now: Callable[[], float]) -> None:
    """Leave the CPUs to the workers, as a loop that waits for a GPU does; the rest is exact."""
    end = now() + seconds
    time.sleep(max(0.0, seconds - _SPIN_S))
    while now() < end:
        pass


def _run(loader: Any, timer: _Timer) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        if loader.num_workers:
            loader.__dict__["persistent_workers"] = True
    else:
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        loader.__dict__[name] = Repeating(getattr(loader, name))
    warm_up = loader.num_workers * (1 + (loader.prefetch_factor or 0))
    epoch = 0
    while not timer.over:
        set_epoch(loader, epoch)
        if not timer.epoch(iter(loader), warm_up):
            break
        epoch += 1


class _Timer:
    """Collects the waits for batches over one or more epochs, and what ``consume`` takes."""

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float],
        beat: Callable[[], None],
        consume: Callable[[], None] | None = None,
        *,
        budget: float | None = None,
        turn: int = 1,
    ) -> None:
        self.turn = turn
        self.budget = budget
        self.seconds = seconds
        self.now = now
        self.beat = beat
        self.consume = consume
        self.intervals: list[float] = []
        self.busy: list[float] = []
        self.timed_s = 0.0
        rough = seconds < _FIRST_LOOK_S
        self.narrow = _ROUGH if rough else _NARROW
        self.first_look_s = _ROUGH_FIRST_LOOK_S if rough else _FIRST_LOOK_S
        self.look_every_s = _ROUGH_LOOK_EVERY_S if rough else _LOOK_EVERY_S
        # A budget that is far away is seen early.
        self.next_look_s = self.first_look_s if budget is None else _ROUGH_FIRST_LOOK_S
        self.settled = False
        self.first_s: float | None = None
        self.began = now()

    @property
    def over(self) -> bool:
        enough = len(self.intervals) >= _FEWEST_BATCHES
        if enough and (self.timed_s >= self.seconds or self._is_settled()):
            return True
        return self.timed_s >= self.seconds * _SLOW_FACTOR

    def _is_settled(self) -> bool:
        """Whether the rate is known well enough, looked at now and then."""
        if self.consume is None and self.timed_s >= self.next_look_s:
            early = self.timed_s < self.first_look_s
            every_s = _ROUGH_LOOK_EVERY_S if early else self.look_every_s
            self.next_look_s = self.timed_s + every_s
            found = summarise(self.intervals, None, self.turn)
            narrow = (found.high - found.low) / found.batches_per_s < self.narrow
            enough = self._is_off(found, _FAR if early else _CLEAR) or (narrow and not early)
            self.settled = found.windows == _WINDOWS and enough
        return self.settled

    def _is_off(self, found: RateFacts, times: float) -> bool:
        """Whether the whole interval lies so many times above or below the budget."""
        if self.budget is None:
            return False
        return found.low > self.budget * times or found.high * times < self.budget

    def epoch(self, batches: Iterator[Any], warm_up: int) -> bool:
        """Time one epoch; False if it was too short to time anything."""
        timed = 0
        last = self.now()
        for count, _ in enumerate(batches, start=1):
            came = self.now()
            if self.first_s is None:
                self.first_s = came - self.began
            done = self._consumed(came)
            if count > max(warm_up, 1):
                self.intervals.append(came - last)
                self.busy.append(done - came)
                self.timed_s += done - last
                timed += 1
                if timed % 64 == 1:
                    self.beat()
                if self.over:
                    return True
            else:
                self.beat()
            last = self.now()
        # An epoch that ends within the warm-up can only give a rate if a later one does not
        # start its workers again; give those a second chance, but not for ever.
        return timed > 0 and self.now() - self.began < self.seconds * _SLOW_FACTOR * 2

    def _consumed(self, came: float) -> float:
        if self.consume is None:
            return came
        self.consume()
        return self.now()


def summarise(intervals: list[float], samples_a_batch: int | None, turn: int = 1) -> RateFacts:
    """The rate over intervals in seconds, with its 95 % interval from batch means.

    Workers that take equally long deliver together: one batch after a wait and the others at
    once. So only whole turns count, of ``turn`` batches, one from each worker.
    """
    _need(len(intervals), 3, "a rate")
    turn = turn if len(intervals) >= 3 * turn else 1
    intervals = intervals[: len(intervals) // turn * turn]
    count = len(intervals)
    duration = sum(intervals)
    windows = min(_WINDOWS, count // turn)
    parts = _parts(count // turn, windows)
    means = [statistics.fmean(intervals[a * turn : b * turn]) for a, b in parts]
    mean = duration / count
    spread = _spread(means)
    mean = max(mean, sys.float_info.epsilon)
    rate = 1.0 / mean
    high = 1.0 / (mean - spread) if spread < mean else math.inf
    samples_per_s = rate * samples_a_batch if samples_a_batch else None
    return RateFacts(
        batches=count,
        samples=count * samples_a_batch if samples_a_batch else None,
        duration_s=duration,
        batches_per_s=rate,
        low=1.0 / (mean + spread),
        high=high,
        samples_per_s=samples_per_s,
        windows=windows,
        wait_p50_s=percentile(intervals, 50),
        wait_p95_s=percentile(intervals, 95),
        wait_p99_s=percentile(intervals, 99),
    )


def summarise_stalls(step_ms: float, waits: list[float], busy: list[float]) -> StallFacts:
    """The share of waiting in seconds of waiting and being busy, with its 95 % interval.

    A window holds several batches, for workers that take turns deliver by fits and starts.
    """
    count = len(waits)
    _need(count, 2 * _BATCHES_A_WINDOW, "a share")
    windows = min(_WINDOWS, count // _BATCHES_A_WINDOW)
    shares = [_share(waits[a:b], busy[a:b]) for a, b in _parts(count, windows)]
    share, spread = _share(waits, busy), _spread(shares)
    return StallFacts(
        step_ms=step_ms,
        share=share,
        low=max(0.0, share - spread),
        high=min(1.0, share + spread),
        batches=count,
        duration_s=sum(waits) + sum(busy),
        windows=windows,
        wait_p50_s=percentile(waits, 50),
        wait_p99_s=percentile(waits, 99),
    )


def _share(waits: list[float], busy: list[float]) -> float:
    return sum(waits) / max(sum(waits) + sum(busy), sys.float_info.epsilon)


def _need(count: int, fewest: int, what: str) -> None:
    if count < fewest:
        raise NoRate(f"the epoch gave {count} batches after the start; {what} needs {fewest}")


def _parts(count: int, windows: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise(round(i * count / windows) for i in range(windows + 1)))


def _spread(values: list[float]) -> float:
    """Half the 95 % interval of the mean of windows."""
    return _T95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _samples_a_batch(loader: Any) -> int | None:
    if loader.batch_size is not None:
        return int(loader.batch_size)
    return 1 if loader.batch_sampler is None else None


@contextlib.contextmanager
def alone_on_this_machine(deadline_s: float = 120.0) -> Iterator[None]:
    """Hold the machine's one place for timed passes; freed on death.

    The lock is taken on this very file, so that none is left behind. Raises `NoRate` if others
    hold it for ``deadline_s``.
    """
    fd = os.open(__file__, os.O_RDONLY)
    try:
        _take(fd, time.monotonic() + deadline_s, deadline_s)
        try:
            yield
        finally:
            _unlock(fd)
    finally:
        os.close(fd)


def _take(fd: int, deadline: float, waited_s: float) -> None:
    while not _try_lock(fd):
        if time.monotonic() > deadline:
            raise NoRate(f"other timed passes held this machine for {waited_s:g} s")
        time.sleep(_POLL_S)


def _try_lock(fd: int) -> bool:
    try:
        _lock(fd)
    except OSError:
        return False
    return True


if sys.platform == "win32":
    import msvcrt

    # Far behind the end of the file: Windows would keep others from reading a locked byte.
    _PLACE = 1 << 30

    def _lock(fd: int) -> None:
        os.lseek(fd, _PLACE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, _PLACE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
