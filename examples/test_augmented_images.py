"""Random augmentation that repeats: same seed same pixels, other seed or epoch other pixels."""

from importlib.util import find_spec

import pytest
import torch

pytest.importorskip("PIL", reason="needs Pillow")
if find_spec("sklearn") is None:
    pytest.skip("needs the photographs of scikit-learn", allow_module_level=True)

from augmented_images import crop_key, make_crops


@pytest.fixture
def dl_make_dataset():
    return make_crops


@pytest.fixture
def dl_loader_kwargs():
    return {"batch_size": 20, "shuffle": True}


@pytest.fixture
def dl_sample_key():
    return crop_key


@pytest.mark.dl_picklable
def test_decoded_images_stay_behind():
    """Two paths travel, not a megabyte of pixels."""


@pytest.mark.dl_deterministic(seeds=[0, 1])
def test_augmentation_follows_the_seed():
    """Bit for bit, over repeated runs and over start methods."""


@pytest.mark.dl_conforms
def test_conforms():
    """Among the rest: workers draw different numbers, and epochs differ."""


def test_crops_are_square(dl_loader):
    for batch in dl_loader:
        assert batch.pixels.shape == (20, 3, 64, 64)
        assert batch.pixels.dtype == torch.uint8
