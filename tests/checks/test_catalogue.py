"""The catalogue of codes: its pages, its selection and its errors."""

from __future__ import annotations

import re

import pytest

from pytest_dataloader.checks.catalogue import (
    BY_NAME,
    CODES,
    FAMILIES,
    PAGE_WIDTH,
    Code,
    UnknownCode,
    explain,
    select,
)

KEBAB_CASE = re.compile(r"[a-z]+(-[a-z]+)*")

CODES_SENTENCE = (
    "The codes are: unpicklable, unpickle-fails, main-only-class, context-bound, heavy-pickle, "
    "arrives-changed, raises, fails-without-workers, fails-with-workers, worker-died, hang, "
    "unsendable-batch, exception-changed, cuda-in-worker, unpinnable-batch, not-repeatable, "
    "differs-by-start-method, depends-on-num-workers, duplicate-randomness, epochs-identical, "
    "epochs-drift, seed-ignored, duplicated-samples, lost-samples, wrong-length, empty-epoch, "
    "empty-worker, silent-truncation, "
    "stale-worker-state, rank-overlap, not-resumable, recursive-start, import-side-effect, "
    "slow-import, nested-processes, "
    "fork-unsafe-handle, fork-unsafe-lock, fork-unsafe-thread, slow-close, too-many-files, "
    "leaked-process, leaked-file, leaked-shared-memory, copied-per-worker, "
    "memory-over-budget, view-of-large-buffer, memory-growth, slow, slow-start, no-speedup, "
    "stalls, slow-transfer, "
    "will-break-on-forkserver, listing-order, hash-order, default-encoding, slow-filesystem, "
    "small-shared-memory, too-many-workers."
)

FAILS_WITHOUT_WORKERS_PAGE = """\
fails-without-workers (runs): The pipeline works with workers and fails with num_workers=0

Why it happens
With num_workers=0 the dataset runs in the main process. There
torch.utils.data.get_worker_info() returns None and worker_init_fn is never called, so
code that takes an id from the one, or relies on what the other sets up, fails. It shows
when somebody turns workers off to debug or to profile.

How to mend it
Treat None as one worker that does it all, and set up on first use what worker_init_fn
would have set up.

Before:
    class Count(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            return iter(range(info.id, 100, info.num_workers))

After:
    class Count(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            start, step = (info.id, info.num_workers) if info else (0, 1)
            return iter(range(start, 100, step))"""

every_code = pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)


def test_the_codes_are_these() -> None:
    assert {family: [c.name for c in CODES if c.family == family] for family in FAMILIES} == {
        "picklability": [
            "unpicklable",
            "unpickle-fails",
            "main-only-class",
            "context-bound",
            "heavy-pickle",
            "arrives-changed",
        ],
        "runs": [
            "raises",
            "fails-without-workers",
            "fails-with-workers",
            "worker-died",
            "hang",
            "unsendable-batch",
            "exception-changed",
            "cuda-in-worker",
            "unpinnable-batch",
        ],
        "determinism": ["not-repeatable", "differs-by-start-method", "depends-on-num-workers"],
        "seeding": ["duplicate-randomness", "epochs-identical", "epochs-drift", "seed-ignored"],
        "completeness": [
            "duplicated-samples",
            "lost-samples",
            "wrong-length",
            "empty-epoch",
            "empty-worker",
            "silent-truncation",
            "stale-worker-state",
            "rank-overlap",
            "not-resumable",
        ],
        "spawning": ["recursive-start", "import-side-effect", "slow-import", "nested-processes"],
        "fork-safety": ["fork-unsafe-handle", "fork-unsafe-lock", "fork-unsafe-thread"],
        "hygiene": [
            "slow-close",
            "too-many-files",
            "leaked-process",
            "leaked-file",
            "leaked-shared-memory",
        ],
        "memory": [
            "copied-per-worker",
            "memory-over-budget",
            "view-of-large-buffer",
            "memory-growth",
        ],
        "throughput": ["slow", "slow-start", "no-speedup", "stalls", "slow-transfer"],
        "portability": [
            "will-break-on-forkserver",
            "listing-order",
            "hash-order",
            "default-encoding",
        ],
        "machine": ["slow-filesystem", "small-shared-memory", "too-many-workers"],
    }


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CODES)
    assert list(BY_NAME) == [code.name for code in CODES]


def test_no_name_is_both_a_code_and_a_family() -> None:
    assert not set(BY_NAME) & set(FAMILIES)


@every_code
def test_names_are_kebab_case(code: Code) -> None:
    assert KEBAB_CASE.fullmatch(code.name)
    assert KEBAB_CASE.fullmatch(code.family)


@every_code
def test_every_part_of_a_page_is_there(code: Code) -> None:
    for part in (code.title, code.why, code.mend, code.before, code.after):
        assert part == part.strip() or part == part.strip("\n") + "\n"
        assert part.strip()
    assert code.before != code.after


@every_code
def test_prose_is_sentences_and_a_title_is_none(code: Code) -> None:
    assert not code.title.endswith(".")
    assert code.why.endswith(".")
    assert code.mend.endswith(".")
    assert "  " not in code.why + code.mend


@every_code
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_example_is_short_and_is_python(code: Code, side: str) -> None:
    source: str = getattr(code, side)
    compile(source, f"<{code.name}: {side}>", "exec")
    assert 2 <= len([line for line in source.splitlines() if line.strip()]) <= 10


@every_code
def test_a_page_fits_a_terminal(code: Code) -> None:
    title, *rest = explain(code.name).splitlines()
    assert title == f"{code.name} ({code.family}): {code.title}"
    assert [line for line in rest if len(line) > PAGE_WIDTH + 4] == []
    assert [line for line in rest if line != line.rstrip()] == []


def test_explain_lays_out_a_page() -> None:
    assert explain("fails-without-workers") == FAILS_WITHOUT_WORKERS_PAGE


def test_explain_refuses_a_code_that_does_not_exist() -> None:
    with pytest.raises(UnknownCode) as caught:
        explain("unpickleable")
    assert str(caught.value) == (
        f"'unpickleable' is not a code; did you mean 'unpicklable'? {CODES_SENTENCE}"
    )


def test_explain_does_not_guess_where_nothing_is_close() -> None:
    with pytest.raises(UnknownCode) as caught:
        explain("zzz")
    assert str(caught.value) == f"'zzz' is not a code. {CODES_SENTENCE}"


def test_explain_takes_no_family() -> None:
    with pytest.raises(UnknownCode) as caught:
        explain("runs")
    assert str(caught.value) == f"'runs' is not a code. {CODES_SENTENCE}"


def test_select_takes_codes_and_families() -> None:
    assert select(["hang", "determinism"]) == {
        "hang",
        "not-repeatable",
        "differs-by-start-method",
        "depends-on-num-workers",
    }


def test_select_takes_a_code_twice() -> None:
    assert select(iter(["hang", "runs", "hang"])) == select(["runs"])


def test_select_of_nothing_is_nothing() -> None:
    assert select([]) == frozenset()


def test_select_of_all_families_is_all_codes() -> None:
    assert select(FAMILIES) == set(BY_NAME)


def test_select_refuses_a_word_that_is_neither() -> None:
    with pytest.raises(UnknownCode) as caught:
        select(["hang", "pickleability"])
    assert str(caught.value) == (
        "'pickleability' is neither a code nor a family; did you mean 'picklability'? "
        "The families are: picklability, runs, determinism, seeding, completeness, spawning, "
        f"fork-safety, hygiene, memory, throughput, portability, machine. {CODES_SENTENCE}"
    )


def test_an_unknown_code_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^'Hang' is neither a code nor a family"):
        select(["Hang"])
