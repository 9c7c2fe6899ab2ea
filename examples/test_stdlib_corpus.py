"""A map-style dataset with a collate function of its own, and the script that trains on it."""

from pathlib import Path

import pytest
from stdlib_corpus import PADDING, StdlibCorpus, collate_documents

SCRIPT = Path(__file__).with_name("train_guarded.py")


@pytest.fixture
def dl_make_dataset():
    return StdlibCorpus


@pytest.fixture
def dl_loader_kwargs():
    return {"batch_size": 16, "shuffle": True, "collate_fn": collate_documents}


@pytest.mark.dl_picklable
def test_travels_to_every_kind_of_worker():
    """File names travel; file contents do not."""


@pytest.mark.dl_deterministic(seeds=[0, 1])
def test_same_seed_gives_the_same_batches():
    """The shuffle follows the seed, and token ids do not follow the hash seed."""


@pytest.mark.dl_throughput(min_batches_per_s=5)
def test_keeps_a_training_loop_busy():
    """A slow budget on purpose: examples run on any machine."""


@pytest.mark.dl_no_recursive_spawn(script=str(SCRIPT), args=["--workers", "2", "--steps", "3"])
def test_training_script_is_guarded():
    """Run as a program under each start method, the script starts its workers once."""


@pytest.mark.dl_conforms
def test_conforms():
    """Every check that needs no budget."""


def test_every_file_is_read_once(dl_run):
    assert dl_run.outcome == "ok"
    assert dl_run.samples == len(StdlibCorpus())
    assert dl_run.batches == -(-dl_run.samples // 16)


def test_batches_are_padded(dl_loader):
    for batch in dl_loader:
        assert batch.tokens.shape == (len(batch.names), int(batch.lengths.max()))
        assert ((batch.tokens != PADDING).sum(dim=1) == batch.lengths).all()
