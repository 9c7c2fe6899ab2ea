"""Image files through Pillow, cropped and flipped at random."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scratch import written
from torch import Tensor
from torch.utils.data import Dataset


def write_images(folder: Path) -> None:
    shades = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    for n in range(24):
        Image.fromarray(shades + n).save(folder / f"{n:02}.png")


class Picture(NamedTuple):
    name: str
    image: Image.Image


class ImageFolder(Dataset[Picture]):
    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Picture:
        with Image.open(self.paths[index]) as image:
            cropped = image.convert("RGB").crop((2, 2, 14, 14))
        if torch.rand(()) < 0.5:
            cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return Picture(self.paths[index].name, cropped)


class Pixels(ImageFolder):
    """The same as tensors of shape (3, height, width)."""

    def __getitem__(self, index: int) -> Any:
        name, image = super().__getitem__(index)
        pixels: Tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return name, pixels.contiguous()


def make_images() -> ImageFolder:
    return ImageFolder(written(write_images))


def make_pixels() -> Pixels:
    return Pixels(written(write_images))


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True, "collate_fn": as_list}
