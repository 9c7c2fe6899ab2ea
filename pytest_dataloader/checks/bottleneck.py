"""Where the time of a batch goes: which part takes most, and whether it computes or waits."""

from __future__ import annotations

from pytest_dataloader.checks.numbers import milliseconds
from pytest_dataloader.observe.facts import MakingFacts, PartFacts, RateFacts, RunFacts, StallFacts

COMPUTES, WAITS, BOTH = "CPU-bound", "I/O-bound", "half waiting, half computing"
_MOSTLY = 0.6
_MUCH_QUEUED = 0.2
_UNEVEN = 5.0
_UNEVEN_S = 0.005

_ADVICE = {
    WAITS: (
        "Fetching waits more than it computes, and workers wait side by side: raise num_workers "
        "and prefetch_factor, or read fewer and larger pieces from a nearer place."
    ),
    COMPUTES: (
        "Fetching computes: workers help up to the number of CPUs, after that only less work a "
        "sample does."
    ),
}


def bound(part: PartFacts) -> str:
    """Whether a part computes or waits; the time in the queue for a CPU is neither."""
    work = part.cpu_s + part.blocked_s
    share = part.blocked_s / work if work > 0 else 0.0
    if share >= _MOSTLY:
        return WAITS
    return COMPUTES if share <= 1 - _MOSTLY else BOTH


def slowest(making: MakingFacts) -> tuple[str, PartFacts]:
    """The part that takes most: its name and its times."""
    parts = (("fetch", making.fetch), ("collate", making.collate))
    return max(parts, key=lambda part: part[1].cpu_s + part[1].blocked_s)


def culprit(base: RunFacts | None) -> str:
    """What takes most of a batch's time, by its path."""
    if base is None or base.making is None:
        return "dataset"
    name, part = slowest(base.making)
    if base.config.has_workers and (base.pickle_s or 0.0) > part.cpu_s + part.blocked_s:
        return "batch"
    return "loader.collate_fn" if name == "collate" else "dataset"


def told(base: RunFacts | None) -> str:
    """The measured cause as the end of a sentence; empty where it was not measured."""
    if base is None or base.making is None:
        return ""
    making = base.making
    name, part = slowest(making)
    who = "a worker" if base.config.has_workers else "the test process"
    parts = f"fetch {milliseconds(making.fetch.seconds)}"
    parts += f", collate {milliseconds(making.collate.seconds)}"
    if base.config.has_workers and base.pickle_s is not None:
        parts += f", transfer {milliseconds(base.pickle_s)}"
    return f"; for a batch {who} takes: {parts}, and the {name} is {_kind(part)}"


def _kind(part: PartFacts) -> str:
    work = max(part.cpu_s + part.blocked_s, 1e-12)
    computing = part.cpu_s / work
    text = f"{bound(part)} ({computing:.0%} computing, {1 - computing:.0%} waiting)"
    queued = part.queued_s / max(part.seconds, 1e-12)
    if queued < _MUCH_QUEUED:
        return text
    return f"{text} besides {queued:.0%} of its time in line for a CPU"


def uneven(measured: RateFacts | StallFacts) -> str:
    """That some waits are much longer than most, as the end of a sentence."""
    p50, p99 = measured.wait_p50_s, measured.wait_p99_s
    if p50 is None or p99 is None or p99 < max(_UNEVEN_S, _UNEVEN * p50):
        return ""
    return (
        f"; most waits are short and some long (p50 {milliseconds(p50)}, p99 {milliseconds(p99)})"
    )


def advice(base: RunFacts | None, mend: str) -> str:
    """A code's advice, after what the measured cause adds to it."""
    if base is None or base.making is None:
        return mend
    name, part = slowest(base.making)
    told = _ADVICE.get(bound(part)) if name == "fetch" and part.seconds > 0.001 else None
    return f"{told} {mend}" if told else mend
