"""What stands in for Python's own functions: it notes the user's lines and answers some of them."""

from __future__ import annotations

import builtins
import glob
import gzip
import io
import os
import sys
from collections.abc import Callable, Iterator
from os import listdir
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.observe import perturbing
from pytest_dataloader.observe.facts import ENCODED, HASHED, LISTED
from pytest_dataloader.observe.perturbing import Watch

TEXT = "Zürich"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "plain.txt").write_text("Bern", encoding="utf-8")
    with gzip.open(tmp_path / "text.gz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    return tmp_path


@pytest.fixture(autouse=True)
def utf8_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbing, "default_encoding", lambda: "utf-8")


def called(call: Callable[..., Any], *args: Any, watch: Watch) -> Any:
    with watch.watching():
        return call(*args)


def line_of(call: Callable[..., Any]) -> str:
    """A function of one line, as ``file:line``."""
    return f"{__file__}:{call.__code__.co_firstlineno + 1}"


# Directories -------------------------------------------------------------------------------------


def by_os(folder):
    return os.listdir(folder)


def by_a_name_of_its_own(folder):
    return listdir(folder)


def by_scandir(folder):
    return [entry.name for entry in os.scandir(folder)]


def by_closed_scandir(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def by_walk(folder):
    return [name for _, folders, _ in os.walk(folder) for name in folders]


def by_iterdir(folder):
    return [path.name for path in folder.iterdir()]


def by_path_glob(folder):
    return [path.name for path in folder.glob("*")]


def by_rglob(folder):
    return [path.parent.name for path in folder.rglob("text.txt")]


def by_glob(folder):
    return [Path(name).name for name in glob.glob(f"{folder}/*")]  # noqa: PTH207


LISTING = (by_os, by_a_name_of_its_own, by_scandir, by_walk, by_iterdir, by_path_glob, by_rglob)


@pytest.mark.parametrize("call", [*LISTING, by_glob])
def test_a_listing_is_noted_and_reversed(folder, call) -> None:
    watch = Watch()
    usual = called(call, folder, watch=watch)
    assert usual == call(folder)
    assert watch.noted[LISTED] == [line_of(call)]
    assert called(call, folder, watch=Watch([line_of(call)])) == usual[::-1]
    assert called(call, folder, watch=Watch(["elsewhere.py:3"])) == usual


def test_a_scandir_that_is_closed_is_one_too(folder) -> None:
    watch = Watch()
    assert called(by_closed_scandir, folder, watch=watch) == by_closed_scandir(folder)
    assert len(watch.noted[LISTED]) == 1


def test_one_name_has_no_order(folder) -> None:
    watch = Watch()
    assert called(by_os, folder / "one", watch=watch) == ["text.txt"]
    assert watch.noted[LISTED] == []


def test_a_listing_that_no_line_of_the_users_asks_for_is_left_alone(folder, monkeypatch) -> None:
    monkeypatch.setattr(perturbing, "_is_users", lambda _file: False)
    watch = Watch([line_of(by_os)])
    assert called(by_os, folder, watch=watch) == by_os(folder)
    assert watch.noted[LISTED] == []


def test_only_the_frames_up_to_ours_are_the_runs(folder) -> None:
    """What calls the package is the user's as well, but is no part of the pipeline."""
    watch = Watch()
    with watch.watching():
        perturbing._is_ascii(folder / "plain.txt", lambda path, _mode: open(path, "rb"))
        ours = perturbing.user_modules()
    assert ours
    assert watch.noted[LISTED] == watch.noted[ENCODED] == []


# Texts -------------------------------------------------------------------------------------------


def by_open(folder):
    return open(folder / "one" / "text.txt").read()


def by_read_text(folder):
    return (folder / "one" / "text.txt").read_text()


def by_path_open(folder):
    return (folder / "one" / "text.txt").open().read()


def by_gzip(folder):
    return gzip.open(folder / "text.gz", "rt").read()


def by_wrapper(folder):
    return io.TextIOWrapper(io.BytesIO(TEXT.encode())).read()


@pytest.mark.parametrize("call", [by_open, by_read_text, by_path_open, by_gzip])
@pytest.mark.skipif(sys.version_info >= (3, 15), reason="UTF-8 is the default everywhere")
def test_a_text_without_an_encoding_is_noted_and_read_otherwise(folder, call) -> None:
    watch = Watch()
    called(call, folder, watch=watch)
    assert watch.noted[ENCODED] == [line_of(call)]
    assert called(call, folder, watch=Watch([line_of(call)])) == TEXT.encode().decode("cp1252")


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: (folder / "plain.txt").read_text(),
        lambda folder: (folder / "one" / "text.txt").read_text("utf-8"),
        lambda folder: (folder / "one" / "text.txt").read_bytes(),
        lambda folder: open(folder / "one" / "text.txt", "rb").read(),
        lambda folder: open(folder / "one" / "text.txt", encoding="utf-8").read(),
        lambda folder: gzip.open(folder / "text.gz", "rt", encoding="utf-8").read(),
        lambda folder: (folder / "new.txt").write_text("é"),
        lambda folder: ((folder / "new.txt").write_text("é"), (folder / "new.txt").read_text()),
    ],
)
def test_a_text_that_reads_the_same_everywhere_is_not_noted(folder, call) -> None:
    watch = Watch()
    assert called(call, folder, watch=watch) == call(folder)
    assert watch.noted[ENCODED] == []


def test_a_text_in_memory_may_hold_anything() -> None:
    watch = Watch()
    called(by_wrapper, None, watch=watch)
    assert (line_of(by_wrapper) in watch.noted[ENCODED]) == (sys.version_info < (3, 15))


def test_a_large_file_may_hold_anything(folder, monkeypatch) -> None:
    assert perturbing._is_ascii(folder / "plain.txt", open)
    monkeypatch.setattr(perturbing, "_CHUNK", 2)
    monkeypatch.setattr(perturbing, "_MOST_CHUNKS", 2)
    assert not perturbing._is_ascii(folder / "plain.txt", open)
    assert not perturbing._is_ascii(7, open)


def test_the_other_default(monkeypatch) -> None:
    assert perturbing.other_encoding() == "cp1252"
    monkeypatch.setattr(perturbing, "default_encoding", lambda: "cp1252")
    assert perturbing.other_encoding() == "utf-8"


def test_a_file_is_still_an_instance_of_its_class(folder) -> None:
    with Watch().watching(), open(folder / "plain.txt", encoding="utf-8") as file:
        assert isinstance(file, io.TextIOWrapper)
        assert issubclass(type(file), io.TextIOWrapper)
        assert not isinstance(io.StringIO(), io.TextIOWrapper)


# Hashes ------------------------------------------------------------------------------------------


class Keyed:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return self.name == other.name


def hashed(value):
    return hash(value)


@pytest.mark.parametrize("value", ["a", b"a", (1, "a"), frozenset(["a"])])
def test_a_hash_of_text_is_noted(value) -> None:
    watch = Watch()
    assert called(hashed, value, watch=watch) == hash(value)
    assert watch.noted[HASHED] == [line_of(hashed)]


@pytest.mark.parametrize("value", [1, (1, 2.0), Keyed("a")])
def test_a_hash_that_is_the_same_everywhere_or_only_a_key_is_not_noted(value) -> None:
    watch = Watch()
    called(hashed, value, watch=watch)
    called(lambda: {Keyed("a"): 1}[Keyed("a")], watch=watch)
    assert watch.noted[HASHED] == []


# Afterwards --------------------------------------------------------------------------------------


def held() -> Iterator[Any]:
    yield from (os.listdir, os.scandir, builtins.open, io.open, builtins.hash, io.TextIOWrapper)
    yield listdir
    yield from (vars(kind) for kind in vars(glob).values() if isinstance(kind, type))


def test_everything_is_put_back() -> None:
    before = [dict(one) if hasattr(one, "items") else one for one in held()]

    def fails() -> None:
        assert os.listdir is not before[0]
        raise KeyError

    with pytest.raises(KeyError):
        called(fails, watch=Watch())
    assert [dict(one) if hasattr(one, "items") else one for one in held()] == before


def test_what_was_kept_asks_nothing_any_more(folder) -> None:
    watch = Watch()
    with watch.watching():
        kept = os.listdir, open
    assert sorted(kept[0](folder)) == sorted(os.listdir(folder))
    kept[1](folder / "one" / "text.txt").close()
    assert watch.noted[LISTED] == watch.noted[ENCODED] == []
