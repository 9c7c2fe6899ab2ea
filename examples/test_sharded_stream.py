"""An iterable dataset: without sharding, two workers would deliver every chunk twice."""

import pytest
from sharded_stream import StdlibStream, chunk_key


def make_stream():
    """Few files are enough to judge by: every check reads all of them, many times."""
    return StdlibStream(limit=24)


@pytest.fixture
def dl_make_dataset():
    return make_stream


@pytest.fixture
def dl_loader_kwargs():
    return {"batch_size": 32}


@pytest.fixture
def dl_sample_key():
    return chunk_key


@pytest.mark.dl_deterministic(seeds=[0, 1])
def test_same_batches_under_every_start_method():
    """Workers take turns in a fixed order, so even a sharded stream repeats."""


@pytest.mark.dl_conforms
def test_conforms():
    """Among the rest: every chunk arrives exactly once, however many workers share the files."""


def test_number_of_chunks_does_not_depend_on_workers(dl_run):
    assert dl_run.outcome == "ok"
    assert dl_run.samples == sum(1 for _ in make_stream())
