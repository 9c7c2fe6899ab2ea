"""Hypothesis strategies: loader configurations that are valid together, samplers, index subsets.

Importing this module imports Hypothesis; nothing else of the package does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from pytest_dataloader.matrix import LoaderConfig, available_start_methods

__all__ = ["batch_samplers", "index_subsets", "loader_configs", "loader_kwargs"]


@st.composite
def loader_configs(
    draw: st.DrawFn,
    *,
    start_methods: Sequence[str] | None = None,
    max_workers: int = 3,
) -> LoaderConfig:
    """Configurations that this platform offers; what needs workers is only drawn with workers.

    They shrink towards 0 workers, then towards the first start method and one worker.
    """
    methods = available_start_methods() if start_methods is None else tuple(start_methods)
    workers = draw(st.integers(0, max_workers))
    if not workers:
        return LoaderConfig(None, 0)
    return LoaderConfig(
        draw(st.sampled_from(methods)),
        workers,
        draw(st.sampled_from((None, False, True))),
        draw(st.sampled_from((None, 1, 2, 4))),
    )


def index_subsets(length: int) -> st.SearchStrategy[list[int]]:
    """Different indices of a dataset of ``length`` samples, in any order; also none of them."""
    if not length:
        return st.just([])
    return st.lists(st.integers(0, length - 1), unique=True, max_size=length)


def batch_samplers(length: int, *, max_batch: int = 5) -> st.SearchStrategy[list[list[int]]]:
    """Batch samplers as lists: each index of ``length`` samples once, in batches of any sizes."""

    def cut(order: list[int], sizes: list[int]) -> list[list[int]]:
        batches, start = [], 0
        for size in sizes:
            batches.append(order[start : start + size])
            start += size
        return [batch for batch in (*batches, order[start:]) if batch]

    sizes = st.lists(st.integers(1, max_batch), max_size=length)
    return st.builds(cut, st.permutations(range(length)), sizes)


@st.composite
def loader_kwargs(draw: st.DrawFn, length: int) -> dict[str, Any]:
    """Arguments of a DataLoader for a map-style dataset that are valid together."""
    kind = draw(st.sampled_from(("batch", "sampler", "batch_sampler", "unbatched")))
    if kind == "unbatched":
        return {"batch_size": None}
    if kind == "batch_sampler":
        return {"batch_sampler": draw(batch_samplers(length))}
    kwargs: dict[str, Any] = {"batch_size": draw(st.integers(1, 8))}
    kwargs["drop_last"] = draw(st.booleans())
    if kind == "sampler":
        kwargs["sampler"] = draw(index_subsets(length))
    else:
        kwargs["shuffle"] = draw(st.booleans()) and length > 0
    return kwargs
