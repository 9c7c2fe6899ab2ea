"""Determinism: what is said of batches that differ between runs of one seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import FORK, SPAWN, W0, batch, epoch, judged, other_in_worker, question, run

from pytest_dataloader.checks import determinism
from pytest_dataloader.checks.asked import Deterministic
from pytest_dataloader.checks.finding import ERROR, INFO, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    BUILD,
    CLOCK,
    ENTROPY,
    HASH,
    RAISED,
    SAMPLE,
    BatchFacts,
    FieldFacts,
    LeafFacts,
    RunRequest,
    SourceFacts,
)

SEED_EVERYTHING = (
    "Draw from torch, random or numpy.random, which are seeded, or make a generator from a seed "
    "that you pass in. Sort sets and directory listings, and collect what threads return in the "
    "order in which it was asked for."
)
SAY_IT_EXPLICITLY = (
    "Say it explicitly: put the value on the dataset, pass dtype, set globals when the module is "
    "imported or in worker_init_fn. For hashing use hashlib or zlib.crc32."
)
SEED_BY_INDEX = (
    "Seed a generator from the epoch and the index of the sample, so that the draw does not depend "
    "on who makes it. With persistent_workers=True a set_epoch in the main process does not reach "
    "the workers: share the epoch, or start them anew."
)

ASKED = Deterministic()
ONE_SEED = Deterministic(seeds=(0,))


def of(config, *values, seed=0, repeat=0, **facts):
    """A run of one-value batches."""
    return run(config, seed, repeat, epochs=(epoch(*map(batch, values)),), **facts)


def twice(config, *values, seed=0):
    return of(config, *values, seed=seed), of(config, *values, seed=seed, repeat=1)


def said(asked, *facts, config=SPAWN):
    return judged(asked, question(config), facts)


# What is run -------------------------------------------------------------------------------------


def test_each_seed_is_run_twice_and_once_where_it_is_compared() -> None:
    assert determinism.needs(ASKED, question()) == [
        RunRequest(SPAWN, 0, 0),
        RunRequest(SPAWN, 0, 1),
        RunRequest(FORK, 0),
        RunRequest(W0, 0),
        RunRequest(SPAWN, 1, 0),
        RunRequest(SPAWN, 1, 1),
        RunRequest(FORK, 1),
        RunRequest(W0, 1),
    ]


def test_the_marker_s_seeds_take_the_place_of_the_session_s() -> None:
    assert {request.seed for request in determinism.needs(Deterministic((7,)), question())} == {7}


@pytest.mark.parametrize(
    ("config", "across", "expected"),
    [
        (W0, ("runs", "start_methods"), {W0}),
        (FORK, ("runs", "start_methods"), {FORK, W0}),
        (SPAWN, ("runs",), {SPAWN, W0}),
    ],
)
def test_the_configurations_that_are_run(config, across, expected) -> None:
    asked = Deterministic(across=across)
    assert {r.config for r in determinism.needs(asked, question(config))} == expected


# not-repeatable ----------------------------------------------------------------------------------


def test_not_repeatable() -> None:
    facts = (of(SPAWN, 1, 2, 3), of(SPAWN, 1, 5, 3, repeat=1))
    assert said(ASKED, *facts) == [
        Finding(
            "not-repeatable",
            ERROR,
            (SPAWN,),
            "batch['x']",
            "expected seed 0 to give the same batches again, got others: batch 1 is the first that "
            "differs, at batch['x']: first has tensor [2], second has tensor [5]",
            SEED_EVERYTHING,
        )
    ]


def field(path, digest, shown="ndarray [1]"):
    return FieldFacts(path, digest, shown, opaque=False)


def sources_told(first, second, *sources, config=SPAWN):
    """The culprit of two runs of one seed, and what is said of where they differ from."""
    runs = [
        replace(run, built=built, sources=sources)
        for run, built in zip(
            (of(config, 1), of(config, 2, repeat=1)), (first, second), strict=True
        )
    ]
    (finding,) = said(ASKED, *runs, config=config)
    return finding.culprit, finding.message.partition("; probable source: ")[2]


def read(kind, call, line, stage=SAMPLE):
    return SourceFacts(kind, call, f"/data/noise.py:{line}", stage)


def test_a_generator_without_a_seed_is_the_source() -> None:
    rng, order = "dataset.rng", "dataset.order"
    before = (field(rng, "a", "Generator Generator(PCG64)"), field(order, "x"))
    after = (field(rng, "b", "Generator Generator(PCG64)"), field(order, "y"))
    assert sources_told(before, after) == (
        rng,
        (
            "dataset.rng begins in another state in each build: it has no seed; and dataset.order "
            "is another one in each build"
        ),
    )


def test_what_the_code_of_samples_reads_comes_before_other_fields() -> None:
    clock, entropy = read(CLOCK, "time.time_ns", 5), read(ENTROPY, "os.urandom", 2, BUILD)
    assert sources_told((field("dataset.t", "a"),), (field("dataset.t", "b"),), clock, entropy) == (
        "/data/noise.py:5",
        "time.time_ns at /data/noise.py:5; and dataset.t is another one in each build",
    )
    assert sources_told((), (), entropy) == ("/data/noise.py:2", "os.urandom at /data/noise.py:2")


def test_a_hash_is_a_source_only_in_new_interpreters() -> None:
    hashed = read(HASH, "hash", 3)
    assert sources_told((), (), hashed) == ("/data/noise.py:3", "hash at /data/noise.py:3")
    assert sources_told((), (), hashed, config=FORK) == ("batch['x']", "")


def test_a_hash_is_the_cause_of_other_batches_in_new_interpreters() -> None:
    hashed = read(HASH, "hash", 3)
    twice_alike = (of(SPAWN, 2), replace(of(SPAWN, 2, repeat=1), sources=(hashed,)))
    (finding,) = said(ASKED, of(FORK, 1), *twice_alike)
    assert (finding.code, finding.culprit) == ("differs-by-start-method", "/data/noise.py:3")
    assert finding.message.endswith(
        "; probable cause: hash at /data/noise.py:3, and each spawned worker has a hash seed of "
        "its own"
    )


def test_the_same_batches_of_every_seed_say_nothing() -> None:
    everywhere = [
        facts
        for config in (W0, FORK, SPAWN)
        for seed in (0, 1)
        for facts in twice(config, seed, 2, seed=seed)
    ]
    asked = Deterministic(across=("runs", "start_methods", "num_workers"))
    for config in (W0, FORK, SPAWN):
        assert said(asked, *everywhere, config=config) == []


def test_the_second_seed_is_judged_too_and_a_fault_is_told_once() -> None:
    facts = (*twice(SPAWN, 1), of(SPAWN, 1, seed=1), of(SPAWN, 2, seed=1, repeat=1))
    [finding] = said(ASKED, *facts)
    assert finding.message.startswith("expected seed 1 to give the same batches again, got others:")
    both = (of(SPAWN, 1), of(SPAWN, 2, repeat=1), *facts[2:])
    [finding] = said(ASKED, *both)
    assert finding.message.startswith("expected seed 0 ")


def test_runs_that_are_not_asked_for_or_did_not_end_are_not_compared() -> None:
    differing = (of(SPAWN, 1), of(SPAWN, 2, repeat=1))
    assert said(Deterministic(across=("start_methods",)), *differing) == []
    assert said(ASKED, differing[0], replace(differing[1], outcome=RAISED)) == []
    assert said(ASKED, differing[0]) == []


def test_batches_out_of_order_are_compared_as_a_set() -> None:
    either_way = (of(SPAWN, 1, 2, in_order=False), of(SPAWN, 2, 1, repeat=1, in_order=False))
    assert said(ASKED, *either_way) == [
        Finding(
            "not-repeatable",
            INFO,
            (SPAWN,),
            "loader.in_order",
            "expected seed 0 to give the same batches in the same order again, got the same in "
            "another order: with in_order=False they come as they are ready",
            "Leave in_order at True where the order matters.",
        )
    ]
    assert len(said(ASKED, *(replace(facts, in_order=True) for facts in either_way))) == 1


def test_a_dataset_that_is_not_built_afresh_is_not_judged_without_workers() -> None:
    notes = ("the dataset is not built afresh",)
    facts = (of(W0, 1), of(W0, 2, repeat=1, notes=notes))
    assert said(ASKED, *facts, config=W0) == [
        NotJudged(
            "the dataset could not be built or copied afresh, so a second run began where the "
            "first had ended; give it as dl_make_dataset"
        )
    ]
    with_workers = (of(SPAWN, 1), of(SPAWN, 2, repeat=1, notes=notes))
    assert [finding.code for finding in said(ASKED, *with_workers)] == ["not-repeatable"]


def test_what_has_no_content_to_digest_is_not_compared() -> None:
    facts = [
        run(SPAWN, 0, repeat, epochs=(epoch(batch(1), not_compared=kinds),))
        for repeat, kinds in enumerate([("words.Token", "words.Mask"), ("words.Token",)])
    ]
    assert said(ONE_SEED, *facts) == [
        NotJudged("not compared: words.Mask, words.Token in the batches has no content to digest")
    ]


# differs-by-start-method -------------------------------------------------------------------------


def test_differs_by_start_method() -> None:
    facts = (*twice(SPAWN, 1, 2), *twice(FORK, 1, 3))
    assert said(ASKED, *facts) == [
        Finding(
            "differs-by-start-method",
            ERROR,
            (SPAWN,),
            "batch['x']",
            "expected the batches of fork-w2 (seed 0), got others under spawn-w2: batch 1 is the "
            "first that differs, at batch['x']: fork-w2 has tensor [3], spawn-w2 has tensor [2]",
            SAY_IT_EXPLICITLY,
        )
    ]


def test_what_the_worker_holds_otherwise_is_the_probable_cause() -> None:
    world = (
        other_in_worker("words.SCALE", "2.0", "1.0"),
        other_in_worker("words.NAMES", "['a']", "[]", rank=2),
        other_in_worker("words.SEEN", "3", "0", rank=3),
    )
    base, second = twice(SPAWN, 2)
    [finding] = said(ASKED, replace(base, world=world), second, of(FORK, 3))
    assert finding.culprit == "words.SCALE"
    assert finding.message == (
        "expected the batches of fork-w2 (seed 0), got others under spawn-w2: batch 0 is the first "
        "that differs, at batch['x']: fork-w2 has tensor [3], spawn-w2 has tensor [2]; probable "
        "cause: words.SCALE is 2.0 in the test process and 1.0 in the worker; and words.NAMES is "
        "['a'] in the test process and [] in the worker"
    )


def test_the_reference_start_method_is_not_compared_with_itself() -> None:
    assert said(ASKED, *twice(SPAWN, 1), *twice(FORK, 3), config=FORK) == []


def test_start_methods_are_compared_only_where_asked() -> None:
    assert said(Deterministic(across=("runs",)), *twice(SPAWN, 1), *twice(FORK, 3)) == []


def test_what_does_not_repeat_is_not_laid_on_the_start_method() -> None:
    facts = (of(SPAWN, 1), of(SPAWN, 2, repeat=1), of(FORK, 3), of(W0, 4))
    assert [finding.code for finding in said(ASKED, *facts)] == ["not-repeatable"]


# depends-on-num-workers --------------------------------------------------------------------------

ALONE = (*twice(SPAWN, 1, 2), of(FORK, 1, 2), of(W0, 1, 7))


def test_depends_on_num_workers_is_information() -> None:
    assert said(ASKED, *ALONE) == [
        Finding(
            "depends-on-num-workers",
            INFO,
            (SPAWN,),
            "batch['x']",
            "expected the batches of 0 workers (seed 0), got others under spawn-w2: batch 1 is the "
            "first that differs, at batch['x']: w0 has tensor [7], spawn-w2 has tensor [2]",
            SEED_BY_INDEX,
        )
    ]


def test_depends_on_num_workers_is_an_error_where_asked_for() -> None:
    [finding] = said(Deterministic(across=("runs", "num_workers")), *ALONE)
    assert (finding.code, finding.severity) == ("depends-on-num-workers", ERROR)


def test_another_order_of_the_same_batches_does_not_depend_on_num_workers() -> None:
    assert said(ASKED, *twice(FORK, 1, 2), of(W0, 2, 1), config=FORK) == []


def test_without_workers_there_is_nothing_to_compare() -> None:
    assert said(ASKED, *twice(W0, 1, 7), *twice(FORK, 1, 2), config=W0) == []


# The first difference ----------------------------------------------------------------------------


def differing(one, other):
    [finding] = said(Deterministic((0,), ("runs",)), one, other)
    return finding.culprit, finding.message.partition("got others: ")[2]


def test_numbers_of_batches_differ() -> None:
    assert differing(of(SPAWN, 1, 2), of(SPAWN, 1, repeat=1)) == (
        None,
        "first has 2 batches, second has 1",
    )


def test_a_batch_whose_leaves_were_not_kept() -> None:
    one, other = (
        run(SPAWN, 0, repeat, epochs=(epoch(batch(1), batch(value, leaves=False)),))
        for repeat, value in ((0, 2), (1, 3))
    )
    assert differing(one, other) == (None, "batch 1 is the first that differs")


def test_batches_after_those_that_were_kept() -> None:
    one, other = (
        run(SPAWN, 0, repeat, epochs=(replace(epoch(batch(1)), batches=9, digest=digest),))
        for repeat, digest in ((0, "a"), (1, "b"))
    )
    assert differing(one, other) == (None, "a batch after the first 1 differs")


def test_equal_numbers_of_batches_over_epochs_that_differ() -> None:
    one, other = (
        run(SPAWN, 0, repeat, epochs=(epoch(*map(batch, first)), epoch(*map(batch, second))))
        for repeat, first, second in ((0, (1, 2), (3,)), (1, (1,), (2, 3)))
    )
    assert differing(one, other) == (None, "batch 1 is the first that differs")


def test_a_leaf_that_only_one_batch_has() -> None:
    x = LeafFacts("batch[0]", "tensor", "x", "[1]")
    y = LeafFacts("batch[1]", "str", "y", "'cat'")
    one, other = (
        run(SPAWN, 0, repeat, epochs=(epoch(BatchFacts(digest, leaves)),))
        for repeat, digest, leaves in ((0, "a", (x,)), (1, "b", (x, y)))
    )
    assert differing(one, other) == (
        "batch[1]",
        "batch 0 is the first that differs, at batch[1]: first has nothing, second has str 'cat'",
    )


# Without another start method --------------------------------------------------------------------

ONLY_SPAWN = (W0, SPAWN)
LOST_SCALE = other_in_worker("data.SCALE", "int 7", "int 1")


def alone_and_spawned(alone, spawned, *, alone_later=None, **facts):
    """Both seeds of a map-style dataset, with 0 workers and spawned."""
    later = alone if alone_later is None else alone_later
    return (
        of(W0, *alone, expected_batches=2),
        of(W0, *later, seed=1, expected_batches=2),
        of(SPAWN, *spawned, expected_batches=2, **facts),
        of(SPAWN, *spawned, repeat=1, expected_batches=2),
        of(SPAWN, *spawned, seed=1, expected_batches=2),
        of(SPAWN, *spawned, seed=1, repeat=1, expected_batches=2),
    )


def said_of_spawn_only(*facts):
    return judged(ASKED, question(SPAWN, matrix=ONLY_SPAWN), facts)


def test_where_only_spawn_is_run_the_test_process_is_the_reference() -> None:
    facts = alone_and_spawned((0.0, 7.0), (0.0, 1.0), world=(LOST_SCALE,))
    assert said_of_spawn_only(*facts) == [
        Finding(
            "differs-by-start-method",
            ERROR,
            (SPAWN,),
            "data.SCALE",
            "expected the batches of 0 workers (seed 0), got others under spawn-w2: batch 1 is the "
            "first that differs, at batch['x']: w0 has tensor [7.0], spawn-w2 has tensor [1.0]; "
            "probable cause: data.SCALE is int 7 in the test process and int 1 in the worker",
            SAY_IT_EXPLICITLY,
        )
    ]


def test_what_differs_by_worker_count_and_is_not_random_is_an_error() -> None:
    (found,) = said_of_spawn_only(*alone_and_spawned((0.0, 7.0), (0.0, 1.0)))
    assert (found.code, found.severity) == ("depends-on-num-workers", ERROR)


def test_what_is_random_may_differ_by_worker_count() -> None:
    facts = alone_and_spawned((0.0, 7.0), (0.0, 1.0), alone_later=(3.0, 4.0), world=(LOST_SCALE,))
    (found,) = said_of_spawn_only(*facts)
    assert (found.code, found.severity) == ("depends-on-num-workers", INFO)
