"""Lays two reports side by side: rates and start-up on machines of one kind, content on any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.report.schema import config_of

#: A rate is worse where its interval lies below the earlier one by more than this share.
_MARGIN = 0.1
#: A start is worse where it takes this many times as long and this many seconds more.
_TIMES, _MORE_S = 2.0, 1.0

_KIND = ("os", "architecture", "cpus", "torch", "python")


@dataclass(frozen=True)
class Compared:
    """One statement of a comparison; ``worse`` fails the session that asked for it."""

    pipeline: str
    config: str
    code: str
    worse: bool
    message: str


def machines_differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why speeds of two reports say nothing about each other, or None where they do."""
    before, now = (report.get("environment", {}) for report in (old, new))
    unlike = [
        f"{name} {before.get(name)} and {now.get(name)}"
        for name in _KIND
        if before.get(name) != now.get(name)
    ]
    return f"other machines or versions: {'; '.join(unlike)}" if unlike else None


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Compared]:
    """What became worse since an earlier report, and whose content is another one.

    Runs are matched by pipeline, configuration and seed; those that only one report has say
    nothing. Speeds are only compared between machines of one kind.
    """
    same_kind = machines_differ(old, new) is None
    before = {p["id"]: p for p in old["pipelines"]}
    for pipeline in new["pipelines"]:
        if pipeline["id"] not in before:
            continue
        earlier = {_key(run): run for run in before[pipeline["id"]]["runs"]}
        for run in pipeline["runs"]:
            was = earlier.get(_key(run))
            if was is None or was["outcome"] != "ok" or run["outcome"] != "ok":
                continue
            name, config = pipeline["id"], config_of(run).id
            yield from _content(name, config, was, run)
            if same_kind:
                yield from _rate(name, config, was, run)
                yield from _start(name, config, was, run)


def _key(run: Mapping[str, Any]) -> tuple[LoaderConfig, Any, Any, Any, Any]:
    names = ("seed", "repeat", "purpose", "script")
    seed, repeat, purpose, script = (run.get(name) for name in names)
    return config_of(run), seed, repeat, purpose, script


def _content(
    name: str, config: str, was: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[Compared]:
    if was.get("digest") and run.get("digest") and was["digest"] != run["digest"]:
        message = (
            f"expected the content of the earlier report (digest {was['digest'][:12]}), got "
            f"{run['digest'][:12]}: the data, the code or the platform gives other batches"
        )
        yield Compared(name, config, "not-repeatable", False, message)


def _rate(
    name: str, config: str, was: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[Compared]:
    low, high = was.get("batches_per_s_low"), run.get("batches_per_s_high")
    slower = _slower(was, run)
    if low is None or high is None or high * slower >= low * (1 - _MARGIN):
        return
    less = f"less {_MARGIN:.0%}"
    if slower > 1:
        less += f" and for a machine that now takes {slower:.3g} times as long for the same work"
    message = (
        f"expected at least {low * (1 - _MARGIN) / slower:,.4g} batches/s (the earlier "
        f"{_interval(was)}, {less}), got {_interval(run)}"
    )
    yield Compared(name, config, "slow", True, message)


def _slower(was: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """How many times as long the reference workload takes now, beside these passes; at least 1."""
    before, now = was.get("reference_s"), run.get("reference_s")
    return max(1.0, now / before) if before and now else 1.0


def _interval(run: Mapping[str, Any]) -> str:
    names = ("batches_per_s", "batches_per_s_low", "batches_per_s_high")
    rate, low, high = (run.get(name) or 0.0 for name in names)
    return f"{rate:,.4g} batches/s, 95 % within {low:,.4g} to {high:,.4g}"


def _start(
    name: str, config: str, was: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[Compared]:
    before, now = was.get("startup_s"), run.get("startup_s")
    if before is None or now is None or was.get("start") != run.get("start"):
        return
    limit = max(before * _TIMES, before + _MORE_S)
    if now > limit:
        message = (
            f"expected the first batch within {limit:.3g} s (the earlier {before:.3g} s, times "
            f"{_TIMES:g} or {_MORE_S:g} s more), got {now:.3g} s"
        )
        yield Compared(name, config, "slow-start", True, message)


def lines(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> Iterator[str]:
    """The comparison in words; ``name`` is that of the earlier report."""
    why = machines_differ(old, new)
    if why is not None:
        yield f"speeds are not compared with {name}: {why}"
    ids = {p["id"] for p in old["pipelines"]}
    both = sum(p["id"] in ids for p in new["pipelines"])
    found = list(compare(old, new))
    yield (
        f"compared with {name}: {both} pipelines in both, "
        f"{sum(one.worse for one in found)} worse, {sum(not one.worse for one in found)} changed"
    )
    for one in found:
        word = "worse" if one.worse else "changed"
        yield f"  {word} {one.code}: {one.pipeline} [{one.config}]"
        yield f"      {one.message}"
