"""Resume passes, run for real: loaders of our own that keep a state, sound and faulty."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pytest_dataloader.checks.asked import Resumable
from pytest_dataloader.checks.evidence import Question, shown_path
from pytest_dataloader.judge import Verdict, judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import StatefulFacts
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]
WORKERS = [LoaderConfig(method, 2) for method in METHODS]
FASTEST = WORKERS[0]


class Rows(Dataset[Any]):
    """12 rows, some of them with a random number."""

    def __init__(self, augment: str = "") -> None:
        self.augment = augment
        self.rng = random.Random(7)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        draw = {"": lambda: 0.0, "global": random.random, "own": self.rng.random}
        return torch.tensor([float(index), draw[self.augment]()])


class SavedRows(Rows):
    """Says that it has a state, without its generator."""

    def state_dict(self) -> dict[str, Any]:
        return {"augment": self.augment}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.augment = state["augment"]


class Counting(DataLoader[Any]):
    """Keeps how many batches of the epoch were given, and leaves out as many."""

    given = 0
    skip = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["given"]

    def __iter__(self) -> Iterator[Any]:
        inner, self.given, self.skip = super().__iter__(), self.skip, 0
        for batch in itertools.islice(inner, self.given, None):
            self.given += 1
            yield batch
        self.given = 0


class Indexed(Counting):
    """Leaves out indices, not batches: what was drawn for those is not drawn again."""

    def __iter__(self) -> Iterator[Any]:
        self.given, self.skip = self.skip, 0
        for indices in itertools.islice(self.batch_sampler, self.given, None):
            self.given += 1
            yield self.collate_fn([self.dataset[index] for index in indices])
        self.given = 0


class Forgets(Counting):
    """Begins at the start, whatever it is given."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = 0


class OffByOne(Counting):
    """Counts a batch before it is given, so that one is missing."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skip = state["given"] + (state["given"] > 0)


class OnlyOnce(Counting):
    """What was resumed cannot be resumed again: it counts from its own start."""

    def __iter__(self) -> Iterator[Any]:
        inner, skip, self.skip = super(Counting, self).__iter__(), self.skip, 0
        self.given = 0
        for batch in itertools.islice(inner, skip, None):
            self.given += 1
            yield batch


class StaysShort(Counting):
    """Leaves out the batches in later epochs too."""

    def __iter__(self) -> Iterator[Any]:
        self.given = self.skip
        for batch in itertools.islice(super(Counting, self).__iter__(), self.given, None):
            self.given += 1
            yield batch


class Locked(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "lock": threading.Lock()}


class Refuses(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("position")


class Disturbing(Counting):
    def state_dict(self) -> dict[str, Any]:
        self.dataset.augment = "own"
        return super().state_dict()


class Stream(IterableDataset[Any]):
    """Keeps where it is, if its state is right."""

    def __init__(self, forget: bool = False) -> None:
        self.position = 0
        self.forget = forget

    def __iter__(self) -> Iterator[Any]:
        while self.position < 12:
            self.position += 1
            yield torch.tensor([float(self.position)])
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {} if self.forget else {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state.get("position", self.position)


class OfDataset(DataLoader[Any]):
    """Hands the state of its dataset on; without workers only."""

    def state_dict(self) -> dict[str, Any]:
        return {"dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.dataset.load_state_dict(state["dataset"])


class Shuffled(Counting):
    """Takes an order from the global generator, which a state must keep or draw again."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.randint(10, ())


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    made = Observer(timeout_s=60)
    yield made
    made.close()


def verdict(
    observer: Observer, make: Any, config: LoaderConfig = W0, *, if_stateful: bool = False
) -> Verdict:
    name = repr(make)
    pipeline = Pipeline(name, make_loader=make)
    asked = (Resumable(if_stateful),)
    return judge(
        pipeline, Question(config, (W0, *WORKERS)), asked, observer, timed=False, one_family=True
    )


def told(observer: Observer, make: Any, config: LoaderConfig = W0) -> list[tuple[str, str, str]]:
    seen = verdict(observer, make, config)
    assert seen.not_judged == ()
    return [(f.severity, f.culprit, f.message) for f in seen.findings]


def sound() -> Any:
    return Counting(Rows(), batch_size=2)


def sound_persistent(num_workers: int) -> Any:
    return Counting(
        Rows(), batch_size=2, num_workers=num_workers, persistent_workers=num_workers > 0
    )


@pytest.mark.parametrize(
    ("make", "config"),
    [(sound, W0), *((make, c) for c in WORKERS[:-1] for make in (sound, sound_persistent))],
    ids=lambda value: getattr(value, "id", None),
)
def test_a_sound_loader(observer: Observer, make: Any, config: LoaderConfig) -> None:
    assert told(observer, make, config) == []


def test_a_sound_loader_whose_workers_are_spawned(observer: Observer) -> None:
    pipeline = Pipeline("spawned", make_loader=sound_persistent)
    facts = observer.observe(pipeline, Question(WORKERS[-1], (WORKERS[-1],)).resume())
    seen = [(one.interrupted, one.came, one.differs_at, one.next_differs) for one in facts.resumed]
    assert seen == [
        ((0,), 6, None, False),
        ((3,), 3, None, False),
        ((3, 4), 2, None, False),
        ((5,), 1, None, False),
        ((6,), 0, None, False),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counting(Rows(), batch_size=2, shuffle=True),
        lambda: Counting(Rows(), batch_size=5, drop_last=True),
        lambda: Counting(Rows(), batch_size=12),
        lambda: Counting(Rows(), batch_size=None),
        lambda: OfDataset(Stream(), batch_size=2),
    ],
    ids=["shuffle", "drop_last", "one batch", "no batches", "state of the dataset"],
)
def test_other_sound_loaders(observer: Observer, make: Any) -> None:
    assert [t for t in told(observer, make) if t[0] != "info"] == []


def forgetful(num_workers: int) -> Any:
    return Forgets(Rows(), batch_size=2, num_workers=num_workers)


def forgetful_persistent(num_workers: int) -> Any:
    return Forgets(
        Rows(), batch_size=2, num_workers=num_workers, persistent_workers=num_workers > 0
    )


FAULTS = {
    "forgets": lambda: Forgets(Rows(), batch_size=2),
    "off by one": lambda: OffByOne(Rows(), batch_size=2),
    "only once": lambda: OnlyOnce(Rows(), batch_size=2),
    "stays short": lambda: StaysShort(Rows(), batch_size=2),
    "locked": lambda: Locked(Rows(), batch_size=2),
    "refuses": lambda: Refuses(Rows(), batch_size=2),
    "disturbing": lambda: Disturbing(Rows(), batch_size=2),
    "forgetful dataset": lambda: OfDataset(Stream(forget=True), batch_size=2),
    "forgotten generator": lambda: Indexed(SavedRows("own"), batch_size=2),
    "lost order": lambda: Shuffled(Rows(), batch_size=2, shuffle=True),
    "held generator": lambda: Indexed(Rows("own"), batch_size=2),
    "augmented": lambda: Indexed(Rows("global"), batch_size=2),
}


FOUND = {
    "forgets": (
        Forgets.load_state_dict,
        (
            "expected the last 3 of 6 batches when resumed after 3 batches, got another batch 3 "
            "(from 0): batch is [0, 0, 1, 0] instead of [6, 0, 7, 0]"
        ),
    ),
    "off by one": (
        OffByOne.load_state_dict,
        (
            "expected the last 3 of 6 batches when resumed after 3 batches, got another batch 3 "
            "(from 0): batch is [8, 0, 9, 0] instead of [6, 0, 7, 0]"
        ),
    ),
    "only once": (
        Counting.load_state_dict,
        (
            "expected the last 2 of 6 batches when resumed after 3 and again after 4 batches, got "
            "another batch 4 (from 0): batch is [2, 0, 3, 0] instead of [8, 0, 9, 0]"
        ),
    ),
    "stays short": (
        Counting.load_state_dict,
        (
            "expected 6 batches in the epoch after the one that was resumed after 3 batches, got 3 "
            "batches"
        ),
    ),
    "locked": (
        Locked.state_dict,
        (
            "expected a state that can be saved, got state['lock'], a lock or queue of threads "
            "(thread.lock): TypeError: cannot pickle '_thread.lock' object"
        ),
    ),
    "disturbing": (
        Disturbing.state_dict,
        (
            "expected the batches of an epoch whether or not state_dict() is called in it, got "
            "others with it"
        ),
    ),
    "forgetful dataset": (
        "dataset.position",
        (
            "expected the last 3 of 6 batches when resumed after 3 batches, got another batch 3 "
            "(from 0): batch is [1, 2] instead of [7, 8]; dataset.position is not the same after "
            "load_state_dict as it was at state_dict"
        ),
    ),
    "forgotten generator": (
        "dataset.rng",
        (
            "expected the last 3 of 6 batches when resumed after 3 batches, got another batch 3 "
            "(from 0): batch is [6, 0.323833, 7, 0.150849] instead of [6, 0.0579989, 7, 0.507436]; "
            "dataset.rng is not the same after load_state_dict as it was at state_dict"
        ),
    ),
    "lost order": (
        Shuffled.load_state_dict,
        (
            "expected the last 6 of 6 batches when resumed after 0 batches, got another batch 0 "
            "(from 0): batch is [3, 0, 2, 0] instead of [6, 0, 11, 0]"
        ),
    ),
}


def line_of(method: Any) -> str:
    return f"{shown_path(__file__)}:{method.__code__.co_firstlineno}"


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault(observer: Observer, fault: str) -> None:
    culprit, message = FOUND[fault]
    place = culprit if isinstance(culprit, str) else line_of(culprit)
    assert told(observer, FAULTS[fault]) == [("error", place, message)]


def test_a_state_that_is_refused(observer: Observer) -> None:
    [(severity, culprit, message)] = told(observer, FAULTS["refuses"])
    line = int(culprit.rpartition(":")[2])
    assert severity == "error"
    assert line == Refuses.load_state_dict.__code__.co_firstlineno + 1
    assert message == (
        "expected load_state_dict to take the state that state_dict gave, got KeyError: 'position'"
    )


@pytest.mark.parametrize(
    ("name", "culprit"), [("augmented", "loader.state_dict"), ("held generator", "dataset.rng")]
)
def test_random_numbers_that_no_state_has(observer: Observer, name: str, culprit: str) -> None:
    assert told(observer, FAULTS[name]) == [
        (
            "info",
            culprit,
            (
                "expected the random numbers of the batches after an interruption as without one, "
                "got others for the right samples: the state of the generators is not in the "
                "loader's state, and no library promises that it is"
            ),
        )
    ]


@pytest.mark.skipif(FASTEST.start_method != "fork", reason="fork is not available here")
@pytest.mark.parametrize("make", [forgetful, forgetful_persistent])
def test_a_fault_with_workers(observer: Observer, make: Any) -> None:
    [(severity, culprit, message)] = told(observer, make, FASTEST)
    assert (severity, culprit) == ("error", line_of(Forgets.load_state_dict))
    assert message == FOUND["forgets"][1]


def plain() -> Any:
    return DataLoader(Rows(), batch_size=2)


def test_a_loader_without_a_state(observer: Observer) -> None:
    seen = verdict(observer, plain)
    assert (seen.findings, seen.not_judged) == (
        (),
        (
            (
                "the loader has no state_dict and load_state_dict, so there is no state to go on "
                "from; torchdata's StatefulDataLoader has them"
            ),
        ),
    )
    silent = verdict(observer, plain, if_stateful=True)
    assert (silent.findings, silent.not_judged) == ((), ())


def test_a_dataset_is_not_built_to_look_for_a_state(observer: Observer) -> None:
    built: list[int] = []
    pipeline = Pipeline("counted", make_dataset=lambda: built.append(1) or Rows())
    facts = observer.observe(pipeline, Question(W0, (W0,)).resume())
    assert (built, facts.stateful) == ([], StatefulFacts(loader=False))


def out_of_order(num_workers: int) -> Any:
    return Counting(Rows(), batch_size=2, num_workers=num_workers, in_order=num_workers == 0)


def unrepeatable() -> Any:
    return Counting(Rows(), batch_size=2, sampler=random.SystemRandom().sample(range(12), 12))


@pytest.mark.parametrize(
    ("make", "config", "reason"),
    [
        (
            unrepeatable,
            W0,
            (
                "two uninterrupted epochs of the same seed differ, so that a resumed one cannot be "
                "compared"
            ),
        ),
        pytest.param(
            out_of_order,
            FASTEST,
            "with in_order=False the rest of an epoch comes in another order anyway",
            marks=pytest.mark.skipif(
                FASTEST.start_method != "fork", reason="fork is not available here"
            ),
        ),
    ],
)
def test_what_cannot_be_compared(
    observer: Observer, make: Any, config: LoaderConfig, reason: str
) -> None:
    seen = verdict(observer, make, config)
    assert (seen.findings, seen.not_judged) == ((), (reason,))
