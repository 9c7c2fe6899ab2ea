"""Runs: what is said of an epoch that does not come to its end."""

from __future__ import annotations

import sysconfig
from dataclasses import replace

import pytest
from by_hand import (
    FORK,
    MATRIX,
    SPAWN,
    W0,
    batch,
    epoch,
    error,
    judged,
    other_in_worker,
    question,
    run,
)

from pytest_dataloader.checks import runs
from pytest_dataloader.checks.asked import Runs
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    RAISED,
    TIMED,
    ArrivalFacts,
    ErrorFacts,
    LastTask,
    MachineFacts,
    RunFacts,
    RunRequest,
    UnpicklableFacts,
)

STDLIB = sysconfig.get_path("stdlib")

LOOK_AT_THE_LAST_LINE = (
    "Read the original traceback: its last line of your own code is the place. Check or drop bad "
    "records when the dataset is built, or handle them in __getitem__."
)
KEEP_IT_ON_THE_DATASET = (
    "Keep what the dataset needs on the dataset, which travels to the worker, or set it when the "
    "module is imported. Where that is impossible, set it in worker_init_fn."
)
TREAT_NONE_AS_ONE_WORKER = (
    "Treat None as one worker that does it all, and set up on first use what worker_init_fn would "
    "have set up."
)
LOOK_AT_STANDARD_ERROR = (
    "Look at the worker's standard error and, after 'Killed', at the system's log for its "
    "out-of-memory killer. Raise an exception where the code leaves the process. "
    "faulthandler.enable() in worker_init_fn shows where native code crashed; python -X "
    "faulthandler does not, since PyTorch's own signal handlers take its place in a worker."
)
LOOK_WHERE_IT_STANDS = (
    "Look at the place where the worker stands. Give every wait in the dataset its own timeout; "
    "DataLoader(timeout=...) turns what remains into an error."
)
WORK_IN_THE_WORKER = (
    "Do the work in the worker itself and raise num_workers, or use threads where the work "
    "releases the interpreter's lock. Prepare what truly needs a pool before the loader."
)
RETURN_TENSORS = (
    "Return tensors, arrays, numbers, strings and containers of them. Send what a function would "
    "need instead of the function, and detach() tensors."
)

BAD_RECORD = error(
    "iterate",
    "ValueError",
    "bad record 7",
    "/project/words.py:31",
    function="__getitem__",
    source="raise ValueError(f'bad record {index}')",
)
SEEN = (
    "ValueError: bad record 7 in __getitem__ at /project/words.py:31, "
    "`raise ValueError(f'bad record {index}')`"
)


def raised(config, seed=0, repeat=0, told=BAD_RECORD):
    return run(config, seed, repeat, outcome=RAISED, error=told)


def died(config, **facts):
    facts = {"reason": "a worker ended with exit code 3", **facts}
    return run(config, outcome=DIED, **facts)


def hung(config, **facts):
    return run(config, outcome=HUNG, reason="no batch for 60 s", **facts)


def said(about, *facts):
    return judged(Runs(), about, facts)


def test_only_the_base_run_is_needed() -> None:
    about = question(seeds=(5, 6))
    base = RunRequest(SPAWN, seed=5)

    assert runs.needs(Runs(), about) == [base]
    assert runs.needs(Runs(later_epochs=True), about) == [base, about.epochs()]


def test_runs_that_end_say_nothing() -> None:
    assert said(question(), run(SPAWN), run(SPAWN, 0, 1), run(SPAWN, 1), run(W0)) == []


def test_nothing_observed_says_nothing_of_other_configurations() -> None:
    assert said(question(), raised(FORK), raised(W0)) == []


# raises ----------------------------------------------------------------------------------------


def test_raises_the_same_without_workers() -> None:
    assert said(question(), raised(SPAWN), raised(W0)) == [
        Finding(
            "raises",
            ERROR,
            (SPAWN,),
            "/project/words.py:31",
            f"expected an epoch to its end, got {SEEN}; with 0 workers it raises the same",
            LOOK_AT_THE_LAST_LINE,
        )
    ]


@pytest.mark.parametrize(
    ("message", "traceback"),
    [
        (
            "unable to allocate memory(shm) for file </torch_7_9_0>: No space left on device (28)",
            "",
        ),
        ("unable to write to file </torch_7_9_0>: No space left on device (28)", ""),
        ("[Errno 28] No space left on device", "self._semlock = _multiprocessing.SemLock("),
    ],
)
def test_shared_memory_that_is_full(message, traceback) -> None:
    error = ErrorFacts("iterate", "RuntimeError", message, traceback)
    facts = replace(raised(SPAWN, told=error), machine=MachineFacts("Linux", shm_bytes=4 << 20))
    [finding] = said(question(), facts, run(W0))
    assert (finding.code, finding.severity, finding.culprit) == (
        "small-shared-memory",
        ERROR,
        "loader",
    )
    assert finding.message == (
        "expected the batches under way to fit into shared memory (/dev/shm), which has 4 MiB, got "
        f"RuntimeError: {message}; with 0 workers it runs to its end"
    )
    # the user's own disk is full
    [other] = said(
        question(), raised(SPAWN, told=replace(error, message=FULL, traceback="")), run(W0)
    )
    assert other.code == "fails-with-workers"


def test_a_batch_that_shared_memory_had_no_room_for_and_that_is_waited_for() -> None:
    message = "unable to write to file </torch_7_9_0>: No space left on device (28)"
    error = ErrorFacts("send", "RuntimeError", message, "in _feed")
    [finding] = said(question(), replace(hung(SPAWN), error=error), run(W0))
    assert (finding.code, finding.culprit) == ("small-shared-memory", "loader")
    assert finding.message == (
        "expected the batches under way to fit into shared memory (/dev/shm), got "
        f"RuntimeError: {message}; the loader then waits for the batch for ever"
    )


FULL = "[Errno 28] No space left on device: 'cache/rows.npy'"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (None, "with 0 workers it was not run"),
        (
            raised(W0, told=error("iterate", "KeyError", "'x'", "/project/words.py:9")),
            "with 0 workers it raises KeyError: 'x'",
        ),
        (
            raised(W0, told=error("iterate", "ValueError", "bad record 7", "/project/words.py:9")),
            "with 0 workers it raises ValueError: bad record 7",
        ),
        (hung(W0), "with 0 workers it hangs (no batch for 60 s)"),
        (died(W0), "with 0 workers it dies"),
    ],
)
def test_raises_beside_what_0_workers_do(other, words) -> None:
    [finding] = said(question(), raised(SPAWN), *([other] if other else []))
    assert finding.code == "raises"
    assert finding.message == f"expected an epoch to its end, got {SEEN}; {words}"


@pytest.mark.parametrize(
    ("matrix", "words"),
    [(MATRIX, "with fork-w2 it was not run"), ((W0,), "with workers it was not run")],
)
def test_raises_without_workers_where_workers_were_not_run(matrix, words) -> None:
    [finding] = said(question(W0, matrix=matrix), raised(W0))
    assert finding.code == "raises"
    assert finding.message == f"expected an epoch to its end, got {SEEN}; {words}"


def test_a_second_run_that_raises_is_not_laid_on_the_workers() -> None:
    [finding] = said(question(), run(SPAWN), raised(SPAWN, 0, 1), run(W0))
    assert finding.code == "raises"
    assert finding.message == (
        f"expected an epoch to its end, got {SEEN}; the run before it, with the same seed, runs "
        "to its end"
    )


def test_a_seed_is_compared_with_the_same_seed_without_workers() -> None:
    [finding] = said(question(), run(SPAWN), raised(SPAWN, 1), run(W0), raised(W0, 1))
    assert finding.code == "raises"
    assert finding.message.endswith("; with 0 workers it raises the same")


def test_the_first_run_that_fails_is_told_alone() -> None:
    later = raised(SPAWN, 1, told=error("iterate", "KeyError", "'x'"))
    [finding] = said(question(), later, raised(SPAWN))
    assert "ValueError: bad record 7" in finding.message


def test_an_error_without_a_place_in_the_user_s_code_has_no_culprit() -> None:
    [finding] = said(question(), raised(SPAWN, told=error("iterate", "RuntimeError", "")))
    assert finding.culprit is None
    assert finding.message == (
        "expected an epoch to its end, got RuntimeError; with 0 workers it was not run"
    )


# fails-with-workers, fails-without-workers -------------------------------------------------------


def test_fails_with_workers() -> None:
    assert said(question(), raised(SPAWN), run(W0)) == [
        Finding(
            "fails-with-workers",
            ERROR,
            (SPAWN,),
            "/project/words.py:31",
            f"expected an epoch to its end, got {SEEN}; with 0 workers it runs to its end",
            KEEP_IT_ON_THE_DATASET,
        )
    ]


def test_fails_without_workers() -> None:
    assert said(question(W0), raised(W0), run(FORK)) == [
        Finding(
            "fails-without-workers",
            ERROR,
            (W0,),
            "/project/words.py:31",
            f"expected an epoch to its end, got {SEEN}; with fork-w2 it runs to its end",
            TREAT_NONE_AS_ONE_WORKER,
        )
    ]


def test_fails_with_workers_for_what_they_hold_otherwise() -> None:
    unlikely = other_in_worker("words.SEEN", "3", "0", rank=3)
    likely = other_in_worker("words.TOKENIZER", "a Tokenizer", "None")
    world = (likely, other_in_worker("words.N", "1", "2"))
    [finding] = said(question(), replace(raised(SPAWN), world=world), run(W0))
    assert (finding.code, finding.culprit) == ("fails-with-workers", "/project/words.py:31")
    assert finding.message == (
        f"expected an epoch to its end, got {SEEN}; with 0 workers it runs to its end; probable "
        "cause: words.TOKENIZER is a Tokenizer in the test process and None in the worker"
    )
    [finding] = said(question(), replace(raised(SPAWN), world=(unlikely,)), run(W0))
    assert "probable cause" not in finding.message
    [finding] = said(question(), replace(raised(SPAWN), world=world), raised(W0))
    assert "probable cause" not in finding.message


def test_nested_processes() -> None:
    told = error(
        "iterate",
        "AssertionError",
        "daemonic processes are not allowed to have children",
        "/project/words.py:31",
        function="__getitem__",
    )
    assert said(question(), raised(SPAWN, told=told), run(W0)) == [
        Finding(
            "nested-processes",
            ERROR,
            (SPAWN,),
            "/project/words.py:31",
            "expected an epoch to its end, got AssertionError: daemonic processes are not allowed "
            "to have children in __getitem__ at /project/words.py:31; with 0 workers it runs to "
            "its end",
            WORK_IN_THE_WORKER,
        )
    ]


def test_without_workers_that_run_nothing_is_said_of_workers_that_fail() -> None:
    assert said(question(W0), run(W0), raised(FORK), raised(SPAWN)) == []


# worker-died -------------------------------------------------------------------------------------


def test_worker_died_quotes_its_standard_error() -> None:
    told = error("worker", "OSError", "disk", "/project/words.py:12", function="load")
    facts = died(SPAWN, error=told, epochs=(epoch(batch(1), batch(2)),))
    assert said(question(), facts, run(W0)) == [
        Finding(
            "worker-died",
            ERROR,
            (SPAWN,),
            "/project/words.py:12",
            "expected all workers to live to the end of the epoch, but a worker ended with exit "
            "code 3 after 2 batches; its standard error ends with OSError: disk in load at "
            "/project/words.py:12; with 0 workers it runs to its end",
            LOOK_AT_STANDARD_ERROR,
        )
    ]


def test_worker_died_without_a_word() -> None:
    torch_s_own = error("iterate", "RuntimeError", "DataLoader worker exited unexpectedly")
    [finding] = said(question(), died(SPAWN, error=torch_s_own))
    assert (finding.code, finding.culprit) == ("worker-died", None)
    assert finding.message == (
        "expected all workers to live to the end of the epoch, but a worker ended with exit code 3 "
        "before its first batch"
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            error("leave", "SystemExit", "3", "/project/words.py:12", function="load"),
            "it left through SystemExit: 3 in load at /project/words.py:12",
        ),
        (
            error("fault", "Segmentation fault", "", "/project/words.py:12", function="load"),
            "it crashed with Segmentation fault in load at /project/words.py:12",
        ),
    ],
)
def test_worker_died_and_left_its_place(told, words) -> None:
    facts = died(SPAWN, error=told, last_task=LastTask(1, 2, 5, "10, 11"))
    [finding] = said(question(), facts)
    assert (finding.code, finding.culprit) == ("worker-died", "/project/words.py:12")
    assert finding.message == (
        "expected all workers to live to the end of the epoch, but a worker ended with exit code 3 "
        f"before its first batch; {words}; worker 1 was making batch 5, of the indices 10, 11"
    )


@pytest.mark.parametrize(
    ("task", "culprit", "words"),
    [
        (
            LastTask(1, 2, 5, "10, 11"),
            "dataset[10, 11]",
            "; worker 1 was making batch 5, of the indices 10, 11",
        ),
        (LastTask(1, 2, 5), None, "; worker 1 was making batch 5"),
        (LastTask(0, 2), None, "; worker 0 had made 2 batches of the epoch"),
    ],
)
def test_worker_died_at_a_batch(task, culprit, words) -> None:
    [finding] = said(question(), died(SPAWN, last_task=task))
    assert finding.culprit == culprit
    assert finding.message == (
        "expected all workers to live to the end of the epoch, but a worker ended with exit code 3 "
        f"before its first batch{words}"
    )


# exception-changed -------------------------------------------------------------------------------

TWO_ARGUMENTS = ArrivalFacts("RuntimeError", "BadRow(path, line)", "/project/errors.py:4")
BAD_ROW = error("iterate", "BadRow", "rows.csv:7", "/project/words.py:31", arrival=TWO_ARGUMENTS)
CHANGED = (
    "expected a worker's BadRow to arrive as such, but it arrives as RuntimeError, which `except "
    "BadRow` does not catch: PyTorch makes it anew as BadRow(text), and its constructor is "
    "BadRow(path, line); raised: BadRow: rows.csv:7 at /project/words.py:31; "
)


def test_an_exception_of_the_users_that_changes_stands_for_the_failure() -> None:
    plain = error("iterate", "BadRow", "rows.csv:7", "/project/words.py:31")
    [finding] = said(question(), raised(SPAWN, told=BAD_ROW), raised(W0, told=plain))
    assert (finding.code, finding.severity) == ("exception-changed", ERROR)
    assert finding.culprit == "/project/errors.py:4"
    assert finding.message == f"{CHANGED}with 0 workers it raises the same"


def test_what_fails_with_workers_only_is_told_first() -> None:
    found = said(question(), raised(SPAWN, told=BAD_ROW), run(W0))
    assert [(f.code, f.severity) for f in found] == [
        ("fails-with-workers", ERROR),
        ("exception-changed", WARNING),
    ]
    assert found[1].message == f"{CHANGED}with 0 workers it runs to its end"


def test_an_exception_of_a_library_that_changes_is_information() -> None:
    decode = error(
        "iterate",
        "UnicodeDecodeError",
        "bad byte",
        "/project/words.py:31",
        arrival=ArrivalFacts("RuntimeError"),
    )
    found = said(question(), raised(SPAWN, told=decode))
    assert [(f.code, f.severity) for f in found] == [
        ("raises", ERROR),
        ("exception-changed", INFO),
    ]
    assert found[1].message == (
        "expected a worker's UnicodeDecodeError to arrive as such, but it arrives as RuntimeError, "
        "which `except UnicodeDecodeError` does not catch: PyTorch makes it anew as "
        "UnicodeDecodeError(text); raised: UnicodeDecodeError: bad byte at /project/words.py:31; "
        "with 0 workers it was not run"
    )


def test_an_exception_with_a_message_of_its_own_is_made_by_keyword() -> None:
    arrival = ArrivalFacts("TypeError", "BadRow(text)", "/project/errors.py:4", keyword=True)
    told = error("iterate", "BadRow", "x", "/project/words.py:31", arrival=arrival)
    [finding] = said(question(), raised(SPAWN, told=told))
    assert "PyTorch makes it anew as BadRow(message=text), and its constructor is" in (
        finding.message
    )


# cuda-in-worker, unpinnable-batch ----------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        (
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        ),
        (
            "Cannot re-initialize XPU in forked subprocess. To use XPU with multiprocessing, you "
            "must use the 'spawn' start method"
        ),
        "CUDA error: initialization error",
        "CUDA error: invalid resource handle",
        (
            "Attempted to send CUDA tensor received from another process; this is not currently "
            "supported. Consider cloning before sending."
        ),
        "_share_filename_: only available on CPU",
    ],
)
def test_a_gpu_in_a_worker_is_known_by_its_words(message) -> None:
    told = error("iterate", "RuntimeError", message, "/project/words.py:31")
    [finding] = said(question(), raised(FORK, told=told), raised(SPAWN, told=told), run(W0))
    assert (finding.code, finding.culprit) == ("cuda-in-worker", "/project/words.py:31")
    assert finding.message == (
        f"expected an epoch to its end, got RuntimeError: {message} at /project/words.py:31; with "
        "0 workers it runs to its end"
    )


def test_a_gpu_that_fails_otherwise_is_no_matter_of_workers() -> None:
    told = error("iterate", "RuntimeError", "CUDA error: out of memory", "/project/words.py:31")
    [finding] = said(question(), raised(SPAWN, told=told), raised(W0, told=told))
    assert finding.code == "raises"


def test_a_batch_that_pinning_passes_on_as_it_is() -> None:
    [finding] = said(question(), run(SPAWN, unpinnable=(("batch[0]", "Graph", "batch[0].x"),)))
    assert (finding.code, finding.severity) == ("unpinnable-batch", WARNING)
    assert (finding.culprit, finding.message) == (
        "batch[0]",
        (
            "expected pin_memory=True to pin batch[0].x, but batch[0] is a Graph, which has no "
            "pin_memory() and is passed on as it is"
        ),
    )


# hang, unsendable-batch --------------------------------------------------------------------------


def test_an_exception_that_cannot_be_sent() -> None:
    told = error("send", "BadRow", "row 7", "/project/words.py:31", function="__getitem__")
    part = UnpicklableFacts(
        "exception",
        "the class make.<locals>.BadRow, defined inside a function",
        "AttributeError: Can't pickle local object",
        "/project/errors.py:4",
    )
    facts = run(
        SPAWN,
        outcome=HUNG,
        reason="a batch could not be sent",
        error=told,
        unpicklable=(part,),
    )
    [finding] = said(question(), facts)
    assert (finding.code, finding.culprit) == ("unsendable-batch", "/project/words.py:31")
    assert finding.message == (
        "expected every exception to be sent, but BadRow is the class make.<locals>.BadRow, "
        "defined inside a function (defined at /project/errors.py:4), that a worker could not "
        "pickle: AttributeError: Can't pickle local object; the loader then waits for it for ever, "
        "and `except BadRow` never sees it; raised: BadRow: row 7 in __getitem__ at "
        "/project/words.py:31"
    )


def test_hang_says_where_the_worker_stood() -> None:
    stuck = (
        f'  File "{STDLIB}/threading.py", line 355 in wait\n'
        '  File "/project/words.py", line 40 in __getitem__\n'
        '  File "/project/train.py", line 8 in main\n'
        "--- parent ---\n"
        '  File "/project/train.py", line 9, in <module>\n'
    )
    facts = hung(SPAWN, stuck=stuck, epochs=(epoch(batch(1)),))
    assert said(question(), facts, run(W0)) == [
        Finding(
            "hang",
            ERROR,
            (SPAWN,),
            "/project/words.py:40",
            "expected the next batch in time, but no batch for 60 s after 1 batches; it "
            "stood at /project/words.py:40 in __getitem__; with 0 workers it runs to its end",
            LOOK_WHERE_IT_STANDS,
        )
    ]


@pytest.mark.parametrize("workers", ["", f'  File "{STDLIB}/queue.py", line 1 in get\n'])
def test_hang_in_the_test_process_stands_at_its_innermost_line(workers) -> None:
    separator = "--- parent ---\n" if workers else ""
    stuck = (
        f"{workers}{separator}"
        '  File "/project/train.py", line 9, in <module>\n'
        '  File "/project/words.py", line 40, in __iter__\n'
        f'  File "{STDLIB}/threading.py", line 355, in wait\n'
    )
    [finding] = said(question(W0), hung(W0, stuck=stuck))
    assert finding.culprit == "/project/words.py:40"
    assert finding.message == (
        "expected the next batch in time, but no batch for 60 s before the first batch; it "
        "stood at /project/words.py:40 in __iter__"
    )


def test_a_hang_that_only_a_timed_pass_meets() -> None:
    request = RunRequest(SPAWN, purpose=TIMED, seconds=0.5)
    stuck = '  File "/project/words.py", line 40, in __iter__\n'
    facts = RunFacts(request, "warm", "hung", "no batch for 60 s", stuck=stuck)
    [finding] = said(question(), run(SPAWN), facts)
    assert (finding.code, finding.culprit) == ("hang", "/project/words.py:40")
    assert finding.message == (
        "expected the next batch in time, but no batch for 60 s in the timed pass, which reads "
        "epoch after epoch; it stood at /project/words.py:40 in __iter__; one epoch runs to its end"
    )
    # the content passes tell it better
    assert len(said(question(), hung(SPAWN), run(W0), facts)) == 1


def test_hang_in_no_line_of_the_user_has_no_culprit() -> None:
    stuck = f'  File "{STDLIB}/threading.py", line 355 in wait\n'
    [finding] = said(question(), hung(SPAWN, stuck=stuck), hung(W0))
    assert finding.culprit is None
    assert finding.message == (
        "expected the next batch in time, but no batch for 60 s before the first batch; "
        "with 0 workers it hangs (no batch for 60 s)"
    )


LOST = error("send", "PicklingError", "Can't pickle <lambda>")


def test_unsendable_batch_names_each_part_that_does_not_travel() -> None:
    parts = (
        UnpicklableFacts("batch['f']", "a lambda", "Can't pickle <lambda>"),
        UnpicklableFacts("batch['lock']", "a lock", "cannot pickle 'lock' object"),
    )
    findings = said(question(), hung(SPAWN, error=LOST, unpicklable=parts), run(W0))
    assert findings == [
        Finding(
            "unsendable-batch",
            ERROR,
            (SPAWN,),
            path,
            f"expected every batch to be sent, but {path} is {kind} that a worker could not "
            f"pickle: {why}; the loader then waits for it for ever",
            RETURN_TENSORS,
        )
        for path, kind, why in (
            ("batch['f']", "a lambda", "Can't pickle <lambda>"),
            ("batch['lock']", "a lock", "cannot pickle 'lock' object"),
        )
    ]


def test_unsendable_batch_of_unknown_parts() -> None:
    assert said(question(), hung(SPAWN, error=LOST), run(W0)) == [
        Finding(
            "unsendable-batch",
            ERROR,
            (SPAWN,),
            "batch",
            "expected every batch to be sent, but a worker could not pickle one: PicklingError: "
            "Can't pickle <lambda>; the loader then waits for it for ever",
            RETURN_TENSORS,
        )
    ]


@pytest.mark.parametrize(
    ("where", "culprit"),
    [("/project/words.py:50", "/project/words.py:50"), (f"{STDLIB}/queues.py:264", "batch")],
)
def test_unsendable_batch_whose_own_code_refuses_names_that_line(where, culprit) -> None:
    told = error("send", "TypeError", "no", where, function="__reduce__")
    [finding] = said(question(), hung(SPAWN, error=told))
    assert (finding.code, finding.culprit) == ("unsendable-batch", culprit)


def test_an_error_at_another_stage_is_a_hang_and_no_unsendable_batch() -> None:
    [finding] = said(question(), hung(SPAWN, error=error("iterate", "KeyError", "'x'")))
    assert finding.code == "hang"


def test_a_start_that_fails_is_told_as_what_did_not_travel() -> None:
    told = error("unpickle", "ModuleNotFoundError", "No module named 'words'")
    [finding] = said(question(), died(SPAWN, error=told), run(W0))
    assert (finding.code, finding.culprit) == ("unpickle-fails", "words")


def test_what_is_no_pipeline_is_said_as_it_is() -> None:
    facts = error("build", "PipelineError", "p: expected a Dataset (with __getitem__), got int")
    failed = run(W0, outcome=RAISED, error=facts)
    assert judged(Runs(), question(W0), [failed]) == [
        Finding(
            "raises",
            ERROR,
            (W0,),
            None,
            "p: expected a Dataset (with __getitem__), got int",
            "Give a Dataset or a DataLoader, or a callable that returns one afresh.",
        )
    ]
