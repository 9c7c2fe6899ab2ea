"""Random crops of real photographs: decoded once a process, augmented by torch's own generator."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

_STRIDE = 53  # pixels between neighbouring crops; a prime, so that crops do not fall on a grid


class Crop(NamedTuple):
    """Crop number `position`: uint8 pixels of shape (3, size, size)."""

    position: int
    pixels: Tensor


@dataclass(frozen=True)
class Augment:
    """Flip left to right half of the time, and shift the brightness by up to `max_shift` levels.

    Draws from torch's global generator, which every worker finds seeded differently in every
    epoch. A generator kept on the dataset would be copied: all workers would draw the same.
    """

    max_shift: int = 32

    def __call__(self, pixels: Tensor) -> Tensor:
        """Both ways uint8 of shape (3, height, width); whole numbers, so equal on any CPU."""
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
        shift = torch.randint(-self.max_shift, self.max_shift + 1, ())
        return (pixels.to(torch.int16) + shift).clamp(0, 255).to(torch.uint8)


class AugmentedCrops(Dataset[Crop]):
    """`count` crops of `size` by `size` pixels, taken from each image in turn."""

    def __init__(self, paths: list[Path], count: int = 200, size: int = 64) -> None:
        self.paths = paths
        self.count = count
        self.size = size
        self.augment = Augment()
        self._decoded: dict[Path, NDArray[np.uint8]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Paths travel to the workers; decoded pixels do not: each worker decodes its own.
        return {**self.__dict__, "_decoded": {}}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Crop:
        image = self._image(self.paths[index % len(self.paths)])
        return Crop(index, self.augment(crop(image, index * _STRIDE, self.size)))

    def _image(self, path: Path) -> NDArray[np.uint8]:
        """The decoded image, of shape (height, width, 3)."""
        if path not in self._decoded:
            with Image.open(path) as image:
                self._decoded[path] = np.asarray(image.convert("RGB"))
        return self._decoded[path]


def crop(image: NDArray[np.uint8], offset: int, size: int) -> Tensor:
    """A square out of (height, width, 3), as (3, size, size); `offset` walks right, then down."""
    height, width = image.shape[0] - size, image.shape[1] - size
    top, left = offset // width * size % height, offset % width
    window = image[top : top + size, left : left + size].transpose(2, 0, 1)
    # Copied: a view would keep the whole photograph alive with every crop.
    return torch.from_numpy(window.copy())


def photographs() -> list[Path]:
    """The two photographs that come with scikit-learn, found without importing it."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the example photographs come with scikit-learn: install it")
    folder = Path(spec.origin).parent / "datasets" / "images"
    return [folder / "china.jpg", folder / "flower.jpg"]


def make_crops() -> AugmentedCrops:
    """The dataset as the tests use it."""
    return AugmentedCrops(photographs())


def crop_key(sample: Crop) -> int:
    """What makes a crop the same crop, however it is augmented."""
    return int(sample.position)
