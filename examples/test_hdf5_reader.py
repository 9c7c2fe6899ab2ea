"""Two readers of the same digits, put through the same checks by one parametrised fixture."""

from functools import partial
from importlib.util import find_spec

import pytest

pytest.importorskip("h5py", reason="needs h5py")
if find_spec("sklearn") is None:
    pytest.skip("needs the digits of scikit-learn", allow_module_level=True)

from hdf5_reader import (
    Hdf5Digits,
    MappedDigits,
    digit_rows,
    write_array,
    write_hdf5,
)


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """A folder with the same 500 digits in both formats."""
    folder = tmp_path_factory.mktemp("digits")
    rows = digit_rows()[:500]
    write_hdf5(folder, rows)
    write_array(folder, rows)
    return folder


@pytest.fixture(params=["hdf5", "mapped"])
def dl_make_dataset(request, digits_folder):
    if request.param == "hdf5":
        return partial(Hdf5Digits, digits_folder / "digits.h5")
    return partial(MappedDigits, digits_folder / "digits.npy")


@pytest.fixture
def dl_loader_kwargs():
    return {"batch_size": 50}


@pytest.mark.dl_picklable
def test_the_path_travels_and_the_handle_stays():
    """An open HDF5 file cannot be pickled, and a memory map pickles by value."""


@pytest.mark.dl_conforms
def test_conforms():
    """Among the rest: no handle is open when workers are forked."""


def test_every_digit_is_read(dl_run):
    assert dl_run.outcome == "ok"
    assert (dl_run.samples, dl_run.batches) == (500, 10)
