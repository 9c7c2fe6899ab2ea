"""Perturbed passes: what the content depends on besides the data, proved by content."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import elsewhere, hashprobe, perturbed, perturbing
from pytest_dataloader.observe.facts import (
    ENCODED,
    HASHED,
    LISTED,
    PERTURBED,
    DependenceFacts,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.observe.starting import Starter, can_warm_start
from pytest_dataloader.pipeline import Pipeline, parse_target, pipeline_of, resolve

REQUEST = RunRequest(LoaderConfig(None, 0), purpose=PERTURBED)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "there", "was", "no"]

needs_warm_start = pytest.mark.skipif(not can_warm_start(), reason="fresh processes cost seconds")
below_3_15 = pytest.mark.skipif(sys.version_info >= (3, 15), reason="UTF-8 is the default")


class Rows(Dataset[Any]):
    rows: Any = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Names(Rows):
    def __init__(self, folder: Path) -> None:
        self.rows = os.listdir(folder)


class SortedNames(Rows):
    def __init__(self, folder: Path) -> None:
        self.rows = sorted(os.listdir(folder))


class NamesOnce(Rows):
    """Takes the order of one listing; another is only counted."""

    def __init__(self, folder: Path) -> None:
        self.rows = [path.name for path in folder.iterdir()]
        self.count = len(os.listdir(folder))


class NamesWithNoise(Names):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index], os.urandom(4)


class Lines(Rows):
    def __init__(self, folder: Path) -> None:
        self.rows = (folder / "b.txt").read_text().splitlines()


class Parsed(Rows):
    """Refuses what it does not know."""

    def __init__(self, folder: Path) -> None:
        self.rows = [{"é": 1}[line] for line in (folder / "b.txt").read_text().splitlines()]


class Fails(Names):
    def __getitem__(self, index: int) -> Any:
        raise ValueError(index)


class Numbered(Rows):
    def __init__(self) -> None:
        numbers = {word: n for n, word in enumerate(set(WORDS))}
        self.rows = [numbers[word] for word in WORDS]


class Sorted(Rows):
    def __init__(self) -> None:
        numbers = {word: n for n, word in enumerate(sorted(set(WORDS)))}
        self.rows = [numbers[word] for word in WORDS]
        self.kept = list({word[:1] for word in WORDS})


class Hashed(Rows):
    rows = WORDS

    def __getitem__(self, index: int) -> Any:
        return hash(self.rows[index]) % 1000


def make_numbered() -> Numbered:
    return Numbered()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text("é\n", encoding="utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def utf8_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (perturbing, perturbed):
        monkeypatch.setattr(module, "default_encoding", lambda: "utf-8")


@pytest.fixture
def no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbed, "_other_hashes", lambda *_: [])


def observed(observer: Observer, name: str, make: Any, **more: Any) -> RunFacts:
    return observer.observe(Pipeline(name, make_dataset=make, **more), REQUEST)


def line_in(kind: type, words: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"class {kind.__name__}("))
    inside = next(n for n, line in enumerate(lines[first:], first) if words in line)
    return f"{__file__}:{inside + 1}"


# In this process ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_other_process")
def test_the_order_of_a_listing(observer, folder) -> None:
    facts = observed(observer, "names", functools.partial(Names, folder))
    [found] = facts.dependences
    names = os.listdir(folder)
    assert (found.on, found.lines) == (LISTED, (line_in(Names, "listdir"),))
    assert found.source == "self.rows = os.listdir(folder)"
    assert found.settings == ("the names as listed", "the names reversed")
    assert shown(found) == (0, f"'{names[0]}'", f"'{names[-1]}'")


@pytest.mark.usefixtures("no_other_process")
def test_a_line_that_makes_no_difference_is_not_to_blame(observer, folder) -> None:
    facts = observed(observer, "once", functools.partial(NamesOnce, folder))
    assert [one.lines for one in facts.dependences] == [(line_in(NamesOnce, "iterdir"),)]


@pytest.mark.usefixtures("no_other_process")
@below_3_15
def test_a_default_encoding(observer, folder) -> None:
    facts = observed(observer, "lines", functools.partial(Lines, folder))
    [found] = facts.dependences
    assert (found.on, found.lines) == (ENCODED, (line_in(Lines, "read_text"),))
    assert found.settings == ("utf-8", "cp1252")
    assert shown(found) == (0, "'é'", "'Ã©'")


@pytest.mark.usefixtures("no_other_process")
@below_3_15
def test_an_error_is_a_difference(observer, folder) -> None:
    facts = observed(observer, "parsed", functools.partial(Parsed, folder))
    [found] = facts.dependences
    assert (found.on, found.batch, found.other) == (ENCODED, 0, None)
    assert found.error is not None
    assert (found.error.stage, found.error.type) == ("build", "KeyError")


@pytest.mark.usefixtures("no_other_process")
@pytest.mark.parametrize("kind", [SortedNames, NamesWithNoise, Fails])
def test_nothing_is_said_of_what_is_sorted_or_cannot_be_compared(observer, folder, kind) -> None:
    facts = observed(observer, kind.__name__, functools.partial(kind, folder))
    assert (facts.ok, facts.dependences, facts.notes) == (True, (), ())


@pytest.mark.usefixtures("no_other_process")
def test_no_more_batches_are_compared_than_a_user_waits_for(observer, folder, monkeypatch) -> None:
    monkeypatch.setattr(perturbed, "_ENOUGH_S", 0)
    made: list[int] = []

    class Counted(Names):
        def __getitem__(self, index: int) -> Any:
            made.append(index)
            return super().__getitem__(index)

    assert observed(observer, "counted", lambda: Counted(folder)).dependences
    assert made == [0, 0, 0]  # as listed, reversed, and as listed again


@pytest.mark.usefixtures("no_other_process")
def test_what_was_listed_before_is_not_judged(observer, folder) -> None:
    facts = observer.observe(Pipeline("given", dataset=Names(folder)), REQUEST)
    assert facts.dependences == ()
    [note] = facts.notes
    assert note == (
        f"whether the order in which {line_in(Names, 'listdir')} lists a directory matters is not "
        "judged, as the dataset is not built anew; give it as dl_make_dataset"
    )


def shown(found: DependenceFacts) -> tuple[int, str, str]:
    assert found.usual is not None
    assert found.other is not None
    return found.batch, found.usual.leaves[0].preview, found.other.leaves[0].preview


# In other processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[Observer]:
    """An observer whose fresh processes the tests share; one other hash seed is enough."""
    found = Observer(timeout_s=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found.starter, "hash_seeds", lambda: (None, 1))
        yield found
    found.close()


@needs_warm_start
def test_the_order_of_a_set(own) -> None:
    [found] = observed(own, "numbered", make_numbered).dependences
    assert (found.on, found.settings) == (HASHED, ("one hash seed", "another"))
    assert found.lines[0] == line_in(Numbered, "enumerate(set(WORDS))")
    assert line_in(Sorted, "list({") not in found.lines
    assert found.usual != found.other


@needs_warm_start
def test_a_hash_of_a_string(own) -> None:
    [found] = observed(own, "hashed", Hashed).dependences
    assert (found.on, found.lines) == (HASHED, (line_in(Hashed, "hash("),))


@needs_warm_start
def test_a_set_whose_order_does_not_matter(own) -> None:
    facts = observed(own, "sorted", Sorted)
    assert (facts.dependences, facts.notes) == ((), ())


def test_a_hash_that_no_other_process_can_repeat(observer) -> None:
    def local() -> Hashed:
        return Hashed()

    facts = observed(observer, "here", local)
    assert facts.dependences == ()
    [note] = facts.notes
    assert note == (
        f"what hash() at {line_in(Hashed, 'hash(')} gives differs between processes; whether that "
        "matters is not judged, as another process could not build the pipeline: give it as a "
        "function or class of a module"
    )


def test_code_without_sets_or_hashes_starts_no_process(observer, folder, monkeypatch) -> None:
    monkeypatch.setattr(perturbed.unordered, "uses", lambda _names: perturbed.unordered.Uses())
    monkeypatch.setattr(elsewhere, "ask", None)
    assert observed(observer, "none", functools.partial(SortedNames, folder)).dependences == ()


@needs_warm_start
def test_hash_seeds_are_others_than_the_environments(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert Starter().hash_seeds() == (None, 1, 3)
    assert Starter(true_starts=True).hash_seeds() == (1, 3)
    monkeypatch.delenv("PYTHONHASHSEED")
    assert Starter().hash_seeds() == (None, 1, 2)


def test_a_true_start_has_the_seed_in_its_environment(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with Starter(true_starts=True).hash_seeded(1):
        assert os.environ["PYTHONHASHSEED"] == "1"
    assert os.environ["PYTHONHASHSEED"] == "7"


@needs_warm_start
def test_an_object_of_a_module_is_imported_anew(own, tmp_path, monkeypatch) -> None:
    source = """
        from pathlib import Path

        folder = Path(__file__).parent
        (folder / "other.txt").touch()
        names = [path.suffix for path in folder.glob("*.*")]
        """
    file = tmp_path / "object_of_a_module.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    pipeline = resolve(parse_target(f"{file}:names"))
    assert isinstance(pipeline, Pipeline)
    [found] = own.observe(pipeline, REQUEST).dependences
    del sys.modules["object_of_a_module"]
    assert (found.on, found.lines) == (LISTED, (f"{file}:6",))
    assert {shown(found)[1:], shown(found)[:0:-1]} == {("'.py'", "'.txt'"), ("'.txt'", "'.py'")}


# How another process builds a pipeline -----------------------------------------------------------


def test_a_recipe(folder) -> None:
    make = functools.partial(Names, folder)
    data = hashprobe.recipe(Pipeline("p", make_dataset=make, loader_kwargs={"batch_size": 2}))
    assert data is not None
    made = hashprobe._pipeline(data)
    assert made.make_dataset().rows == os.listdir(folder)
    assert (made.id, made.loader_kwargs) == ("p", {"batch_size": 2})


def test_a_recipe_of_a_callable_target() -> None:
    data = hashprobe.recipe(pipeline_of(make_numbered))
    assert data is not None
    assert type(hashprobe._pipeline(data)) is type(pipeline_of(make_numbered))


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline("object", dataset=Rows()),
        Pipeline("lambda", make_dataset=lambda *_: Rows()),
        Pipeline("function", make_dataset=Rows, loader_kwargs={"collate_fn": lambda rows: rows}),
    ],
    ids=lambda pipeline: pipeline.id,
)
def test_what_has_no_recipe(pipeline) -> None:
    assert hashprobe.recipe(pipeline) is None
