"""What the workers' notes say of handles and threads."""

from __future__ import annotations

from pytest_dataloader.observe.facts import HandleFacts
from pytest_dataloader.observe.forking import shared_handles, worker_threads


def note(pid, **handles):
    return {
        "kind": "handles",
        "pid": pid,
        "handles": {f"dataset.{k}": v for k, v in handles.items()},
    }


def test_a_handle_that_a_worker_still_has_and_moves() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[7, "an open file", 80])]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=True),)


def test_a_handle_that_stays_where_it_was() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[7, "an open file", 0])]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=False),)


def test_one_moving_worker_is_enough() -> None:
    still, moved = [7, "an open file", 0], [7, "an open file", 9]
    told = [note(1, f=still), note(2, f=still), note(1, f=still), note(2, f=moved)]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=True),)


def test_a_handle_that_is_opened_anew_is_not_shared() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[8, "an open file", 80])]
    assert shared_handles(told) == ()


def test_a_handle_that_was_not_there_at_the_start_is_the_workers_own() -> None:
    told = [note(1), note(1, f=[8, "an open file", 0]), note(1, f=[8, "an open file", 80])]
    assert shared_handles(told) == ()


def test_a_worker_that_made_no_batch_tells_nothing() -> None:
    assert shared_handles([note(1, f=[7, "an open file", 0])]) == ()


def test_threads_are_told_once() -> None:
    told = [{"kind": "batch", "threads": ["a (run at x.py:1)"]}, {"kind": "batch"}]
    assert worker_threads(told * 2) == ("a (run at x.py:1)",)
