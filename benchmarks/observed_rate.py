"""The rate that a timed pass reports, against a bare loop over an equal loader."""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader.observe import clock
from pytest_dataloader.observe.rate import measure
from pytest_dataloader.observe.watchdog import Watchdog

GOAL = 0.02
RATES = (20, 100, 500, 2000, 5000)
WORKERS = (0, 2)
BATCH_SIZE = 4
FEWEST_BATCHES = 20


class Sleepy(Dataset[torch.Tensor]):
    """A dataset whose batches each take a given time, however busy the machine is."""

    def __init__(self, length: int, batch_s: float) -> None:
        self.length = length
        self.batch_s = batch_s
        self.sample = torch.zeros(64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        time.sleep(self.batch_s)
        return [self.sample] * len(indices)


def make_loader(batches_per_s: float, workers: int, batches: int) -> Any:
    """A loader that would give batches at this rate if loading them cost nothing else."""
    dataset = Sleepy(batches * BATCH_SIZE, max(workers, 1) / batches_per_s)
    context = "fork" if workers else None
    return DataLoader(dataset, BATCH_SIZE, num_workers=workers, multiprocessing_context=context)


def bare_rate(loader: Any, warm_up: int, count: int) -> float:
    """Batches per second over ``count`` batches after the warm-up, by nothing but a loop."""
    batches = iter(loader)
    for _ in range(warm_up):
        next(batches)
    began = time.perf_counter()
    for _ in itertools.islice(batches, count):
        pass
    return count / (time.perf_counter() - began)


def observed_rate(loader: Any, seconds: float) -> float:
    """What the plugin's timed pass says, its watchdog included."""
    dog = Watchdog(60.0, lambda: None)
    with dog.watching():
        return measure(loader, seconds, clock.now, dog.beat).batches_per_s


def pair(batches_per_s: float, workers: int, seconds: float, observed_first: bool) -> float:
    """One ratio, observed to bare; both over as many batches as the rate gives in ``seconds``."""
    count, warm_up = int(batches_per_s * seconds), 3 * workers + 1
    rates: dict[bool, float] = {}
    for observed in (observed_first, not observed_first):
        loader = make_loader(batches_per_s, workers, count + warm_up)
        if observed:
            rates[observed] = observed_rate(loader, seconds)
        else:
            rates[observed] = bare_rate(loader, warm_up, count)
        loader = None
        gc.collect()
    return rates[True] / rates[False]


class Instant:
    """Stands for a loader that has its batches at once."""

    dataset = sampler = ()
    batch_sampler = prefetch_factor = None
    batch_size = 1
    num_workers = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(0, 100_000)


def timing_cost_s() -> float:
    """What the timed pass itself spends on a batch: the least of many, so that load counts less."""
    costs = []
    for _ in range(50):
        began = time.perf_counter()
        facts = measure(Instant(), 0.005, clock.now, lambda: None)
        costs.append((time.perf_counter() - began) / facts.batches)
    return min(costs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.25, help="least of a timed pass")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cost_s = timing_cost_s()
    print(
        f"timing a batch costs {1e6 * cost_s:.2f} us: {cost_s * max(RATES):.2%} at {max(RATES):,} "
        "batches/s"
    )
    print(f"observed / bare rate, median of {chosen.pairs} pairs; goal within {GOAL:.0%}")
    for workers, nominal in itertools.product(WORKERS, RATES):
        seconds = max(chosen.seconds, FEWEST_BATCHES / nominal)
        ratios = [pair(nominal, workers, seconds, bool(n % 2)) for n in range(chosen.pairs)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        fits = "goal met" if abs(ratio - 1) <= GOAL else "GOAL MISSED"
        print(
            f"{workers} workers, {nominal:>5} batches/s nominal: ratio {ratio:.4f} "
            f"(quartiles {low:.3f} to {high:.3f}): {fits}",
            flush=True,
        )


if __name__ == "__main__":
    main()
