"""Seeding: what is said of the random numbers of workers, epochs and seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import (
    FORK,
    SPAWN,
    W0,
    batch,
    dataset,
    drawn,
    epoch,
    epochs_run,
    judged,
    other_in_worker,
    question,
    run,
)

from pytest_dataloader.checks import seeding
from pytest_dataloader.checks.asked import Seeding
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    BUILD,
    CONSTANT,
    INDEX,
    ORDER,
    RAISED,
    SAMPLE,
    SEED,
    FieldFacts,
    RunRequest,
    SourceFacts,
)

MAKE_IT_IN_THE_WORKER = (
    "Draw from torch, random or numpy.random, or make the generator in the worker from "
    "torch.initial_seed(), which differs between workers and epochs."
)
LET_THE_EPOCH_ENTER = (
    "Draw from torch, random or numpy.random, which are seeded anew in each worker and epoch, or "
    "let the epoch enter the seed through a set_epoch that the training loop calls. "
    "torch.initial_seed() + index is no way out: it is the base seed plus the worker's id, so two "
    "workers' sums meet."
)
CLONE_FIRST = "Use the operation that returns a new tensor, or clone() the sample first."
TAKE_THE_SEED = (
    "Draw from torch, random or numpy.random, or take the seed of a generator as an argument. "
    "Do not call torch.manual_seed inside a dataset or a transform."
)

ASKED = Seeding()
NOISE = "dataset.noise"


def said(*facts, config=SPAWN):
    return judged(ASKED, question(config), facts)


def codes(*facts, config=SPAWN):
    return [finding.code for finding in said(*facts, config=config)]


def seeds(*digests, config=SPAWN):
    """The runs of the first two seeds, each of one batch."""
    return [run(config, seed, epochs=(epoch(batch(d)),)) for seed, d in enumerate(digests)]


def in_each(path, *firsts, number=0, states=("a", "b")):
    """A generator that workers begin an epoch with in these states, and draw from."""
    return [
        drawn(path, *(f"{first}{s}" for s in states), first=first, pid=pid, epoch=number)
        for pid, first in enumerate(firsts)
    ]


# What is run -------------------------------------------------------------------------------------


def test_a_run_of_several_epochs_and_one_of_each_of_two_seeds() -> None:
    assert seeding.needs(ASKED, question(seeds=(3, 4, 5))) == [
        RunRequest(SPAWN, 3, repeat=1, epochs=3),
        RunRequest(SPAWN, 3),
        RunRequest(SPAWN, 4),
    ]


def test_a_run_that_fails_in_a_later_epoch_is_not_judged() -> None:
    failing = epochs_run(SPAWN, (1, 2), outcome=RAISED, reason="ValueError: bad record")
    assert said(failing) == [
        NotJudged("a run of several epochs did not come to its end: ValueError: bad record")
    ]


def test_one_epoch_is_no_evidence() -> None:
    alike = in_each(NOISE, "x", "x")
    assert said(epochs_run(SPAWN, (1, 2), randomness=tuple(alike))) == []


# duplicate-randomness ----------------------------------------------------------------------------


def test_a_generator_that_is_copied_to_each_worker() -> None:
    drawn_by = (*in_each(NOISE, "x", "x"), *in_each(NOISE, "y", "y", number=1))
    assert said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=drawn_by)) == [
        Finding(
            "duplicate-randomness",
            ERROR,
            (SPAWN,),
            NOISE,
            "expected each worker to draw random numbers of its own, but dataset.noise is the same "
            "copy in 2 of 2 spawn workers, which draw the same numbers",
            MAKE_IT_IN_THE_WORKER,
        )
    ]


def test_a_global_generator_that_worker_init_fn_seeds_alike() -> None:
    drawn_by = (*in_each("numpy.random", "x", "x", "z"), *in_each("numpy.random", "y", number=1))
    assert said(epochs_run(FORK, (1, 2), (3, 4), randomness=drawn_by), config=FORK) == [
        Finding(
            "duplicate-randomness",
            ERROR,
            (FORK,),
            "loader.worker_init_fn",
            "expected each worker to draw random numbers of its own, but numpy.random (global) was "
            "seeded alike in 2 of 3 fork workers, which draw the same numbers",
            MAKE_IT_IN_THE_WORKER,
        )
    ]


@pytest.mark.parametrize(
    "randomness",
    [
        pytest.param(in_each(NOISE, "x", "y"), id="another state in each worker"),
        pytest.param(in_each(NOISE, "x", "x", states=("a", "a")), id="drawn from before samples"),
        pytest.param(in_each(NOISE, "x", "x", states=()), id="never looked at again"),
        pytest.param(in_each(NOISE, "x"), id="one worker"),
        pytest.param(
            [drawn(NOISE, "x", "x", first="x", pid=pid) for pid in (1, 2)], id="never drawn from"
        ),
        pytest.param(
            [*in_each(NOISE, "x"), drawn(NOISE, "x", "x", first="x", pid=9)], id="used by one only"
        ),
        pytest.param(
            [drawn(NOISE, "a", "b", first=None, pid=pid) for pid in (1, 2)], id="start not seen"
        ),
        pytest.param(
            [*in_each(NOISE, "x"), *in_each("dataset.other", "x")], id="two generators alike"
        ),
    ],
)
def test_workers_that_do_not_draw_the_same_numbers(randomness) -> None:
    facts = epochs_run(SPAWN, (1, 2), (3, 4), randomness=tuple(randomness))
    assert "duplicate-randomness" not in codes(facts)


def test_one_look_is_enough_where_a_worker_makes_one_batch() -> None:
    drawn_by = tuple(in_each(NOISE, "x", "x", states=("a",)))
    assert codes(epochs_run(SPAWN, (1, 2), (3, 4), randomness=drawn_by)) == ["duplicate-randomness"]


# epochs-identical --------------------------------------------------------------------------------


def test_a_generator_that_begins_each_epoch_alike() -> None:
    both = (*in_each(NOISE, "x"), *in_each(NOISE, "x", number=1))
    assert said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=both)) == [
        Finding(
            "epochs-identical",
            ERROR,
            (SPAWN,),
            NOISE,
            "expected other random numbers in the second epoch, but dataset.noise begins it in the "
            "state in which it began the first: its augmentation repeats",
            LET_THE_EPOCH_ENTER,
        )
    ]


def test_a_global_generator_is_laid_on_worker_init_fn() -> None:
    both = (*in_each("random", "x", "y"), *in_each("random", "y", "x", number=1))
    [finding] = said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=both))
    assert (finding.code, finding.culprit) == ("epochs-identical", "loader.worker_init_fn")
    assert finding.message == (
        "expected other random numbers in the second epoch, but random begins it in the state in "
        "which it began the first: its augmentation repeats"
    )


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(in_each(NOISE, "y", number=1), id="begins otherwise"),
        pytest.param([drawn(NOISE, "a", "b", first=None, epoch=1)], id="goes on in the worker"),
        pytest.param([], id="not seen again"),
    ],
)
def test_a_generator_that_goes_on_says_nothing(second) -> None:
    both = (*in_each(NOISE, "x"), *second)
    assert said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=both)) == []


def test_the_same_batches_of_a_random_pipeline() -> None:
    both = (*in_each("torch", "x"), *in_each("torch", "y", number=1))
    assert said(epochs_run(SPAWN, (1, 2), (1, 2), randomness=both)) == [
        Finding(
            "epochs-identical",
            WARNING,
            (SPAWN,),
            "dataset",
            "expected other batches in the second epoch of a pipeline that draws random numbers, "
            "got the same 2 batches under spawn-w2",
            LET_THE_EPOCH_ENTER,
        )
    ]


def test_the_same_batches_where_nothing_is_random_say_nothing() -> None:
    assert said(epochs_run(SPAWN, (1, 2), (1, 2)), *seeds(1, 1)) == []
    assert said(epochs_run(SPAWN, (1, 2), (1, 2))) == []


def test_what_the_build_draws_may_stay() -> None:
    assert said(epochs_run(SPAWN, (1, 2), (1, 2)), *seeds(1, 2)) == []


def source(call, *, seed=CONSTANT, stage=SAMPLE, kind=SEED):
    return SourceFacts(kind, call, "/data/noise.py:7", stage, seed)


def test_a_generator_that_is_seeded_by_a_constant_for_each_sample() -> None:
    facts = epochs_run(
        SPAWN,
        (1, 2),
        (1, 2),
        sources=(source("numpy.random.default_rng"),),
        dataset=dataset(iterable=False),
    )
    assert said(facts, *seeds(1, 1)) == [
        Finding(
            "epochs-identical",
            ERROR,
            (SPAWN,),
            "/data/noise.py:7",
            "expected other random numbers in the second epoch, but numpy.random.default_rng at "
            "/data/noise.py:7 seeds a generator by a constant: each sample gets the same numbers, "
            "in each epoch",
            LET_THE_EPOCH_ENTER,
        ),
        Finding(
            "seed-ignored",
            WARNING,
            (SPAWN,),
            "/data/noise.py:7",
            "expected seeds 0 and 1 to give other batches, got the same: numpy.random.default_rng "
            "at /data/noise.py:7 seeds a generator by a constant",
            TAKE_THE_SEED,
        ),
    ]


def test_a_constant_seed_says_nothing_where_the_epochs_differ() -> None:
    facts = epochs_run(SPAWN, (1, 2), (3, 4), sources=(source("random.seed"),))
    assert said(facts, *seeds(1, 2)) == []


def test_a_stream_in_another_order_is_not_the_same() -> None:
    facts = epochs_run(SPAWN, (1, 2), (2, 1), sources=(source("random.Random"),), dataset=dataset())
    assert said(facts) == []


@pytest.mark.parametrize(
    ("one", "severity", "words"),
    [
        (
            source("random.seed", seed=INDEX),
            INFO,
            "from the index alone: a sample's numbers are the same in each epoch",
        ),
        (
            source("manual_seed", stage=ORDER),
            WARNING,
            "by a constant: the order is the same in each epoch",
        ),
        (
            source("random.Random"),
            WARNING,
            "by a constant: the numbers are the same in each epoch",
        ),
    ],
)
def test_how_bad_a_seed_in_the_code_is(one, severity, words) -> None:
    facts = epochs_run(SPAWN, (1, 2), (1, 2), sources=(one,), dataset=dataset())
    found = said(facts)
    assert [(f.code, f.severity) for f in found] == [("epochs-identical", severity)]
    assert found[0].message.endswith(f"seeds a generator {words}")


def test_a_sampler_that_waits_for_its_epoch() -> None:
    described = dataset(iterable=False, told_epochs=("loader.batch_sampler", "Shuffled"))
    made = epochs_run(SPAWN, (1, 2), (1, 2), dataset=described)
    shuffled = replace(made, epochs=tuple(replace(epoch, indices=(1, 0)) for epoch in made.epochs))
    assert said(shuffled) == [
        Finding(
            "epochs-identical",
            INFO,
            (SPAWN,),
            "loader.batch_sampler",
            "expected another order in the second epoch, got the same: Shuffled takes the epoch "
            "from set_epoch, which was not called here; call loader.batch_sampler.set_epoch(epoch) "
            "before each epoch",
            LET_THE_EPOCH_ENTER,
        )
    ]
    in_order = replace(made, epochs=tuple(replace(epoch, indices=(0, 1)) for epoch in made.epochs))
    assert said(in_order) == []


def built(*digests, config=SPAWN):
    """The runs of the first two seeds with the state of torch's generator after the build."""
    runs = seeds(1, 1, config=config)
    states = [FieldFacts("torch", digest, "its state", False) for digest in digests]
    return [replace(one, built=(state,)) for one, state in zip(runs, states, strict=True)]


def test_a_build_that_seeds_over_the_seed_of_the_run() -> None:
    both = (*in_each("torch", "x"), *in_each("torch", "y", number=1))
    seeding_line = source("torch.manual_seed", stage=BUILD)
    facts = epochs_run(SPAWN, (1, 2), (3, 4), randomness=both, sources=(seeding_line,))
    assert said(facts, *built("s", "s")) == [
        Finding(
            "seed-ignored",
            WARNING,
            (SPAWN,),
            "/data/noise.py:7",
            "expected seeds 0 and 1 to give other batches, got the same: torch is seeded again by "
            "torch.manual_seed at /data/noise.py:7 as the pipeline is built",
            TAKE_THE_SEED,
        )
    ]
    assert said(facts, *built("s", "t")) == []


def test_other_batches_of_a_random_pipeline_say_nothing() -> None:
    assert said(epochs_run(SPAWN, (1, 2), (2, 1)), *seeds(1, 2)) == []


def test_epochs_without_batches_are_not_alike() -> None:
    assert said(epochs_run(SPAWN, (), ()), *seeds(1, 2)) == []


def test_numbers_that_the_loader_s_sampler_draws_do_not_count_without_workers() -> None:
    both = (*in_each("torch", "x"), *in_each("torch", "y", number=1))
    facts = epochs_run(W0, (1, 2), (1, 2), randomness=both)
    assert said(facts, config=W0) == []
    with_workers = epochs_run(SPAWN, (1, 2), (1, 2), randomness=both)
    assert codes(with_workers) == ["epochs-identical"]


def test_what_persistent_workers_do_not_hear_of_is_told_elsewhere() -> None:
    facts = epochs_run(
        SPAWN,
        (1, 2),
        (1, 2),
        randomness=(*in_each("torch", "x"), *in_each("torch", "y", number=1)),
        epoch_fields=("dataset.epoch",),
        dataset=dataset(persistent=True),
    )
    assert said(facts, *seeds(1, 2)) == []
    started_anew = replace(facts, dataset=dataset(persistent=False))
    assert codes(started_anew, *seeds(1, 2)) == ["epochs-identical"]


# epochs-drift ------------------------------------------------------------------------------------

DIMMED = other_in_worker(
    "dataset.images", "float32 tensor of shape [2] [1, 1]", "float32 tensor of shape [2] [0.1, 0.1]"
)


def test_stored_data_that_is_edited_in_place() -> None:
    assert said(epochs_run(W0, (1, 2), (3, 4), (5, 6), drifted=(DIMMED,)), config=W0) == [
        Finding(
            "epochs-drift",
            ERROR,
            (W0,),
            "dataset.images",
            "expected the stored data to stay as it was, but dataset.images is float32 tensor of "
            "shape [2] [1, 1] before and float32 tensor of shape [2] [0.1, 0.1] after 3 epochs, "
            "and the samples of the epochs differ",
            CLONE_FIRST,
        )
    ]


def test_a_cache_that_changes_no_sample_says_nothing() -> None:
    assert said(epochs_run(W0, (1, 2), (2, 1), drifted=(DIMMED,)), config=W0) == []


def test_without_identities_the_batches_are_compared() -> None:
    facts = epochs_run(W0, (1, 2), (3, 4), drifted=(DIMMED,))
    unknown = [replace(one, sample_ids=None) for one in facts.epochs]
    assert codes(replace(facts, epochs=tuple(unknown)), config=W0) == ["epochs-drift"]
    same = epochs_run(W0, (1, 2), (2, 1), drifted=(DIMMED,))
    unknown = [replace(one, sample_ids=None) for one in same.epochs]
    assert said(replace(same, epochs=tuple(unknown)), config=W0) == []


def test_samples_that_are_random_anyway_make_drift_a_warning() -> None:
    drawn_by = (drawn("random", "a", "b", first=None), drawn("torch", "c", "c", first=None))
    facts = epochs_run(W0, (1, 2), (3, 4), drifted=(DIMMED,), randomness=drawn_by)
    [finding] = said(facts, config=W0)
    assert (finding.code, finding.severity) == ("epochs-drift", WARNING)


def test_a_sampler_that_shuffles_is_no_excuse_for_drift() -> None:
    drawn_by = (drawn("torch", "c", "c", first=None), drawn("torch", "d", "d", epoch=1))
    facts = epochs_run(W0, (1, 2), (3, 4), drifted=(DIMMED,), randomness=drawn_by)
    [finding] = said(facts, *seeds(1, 2, config=W0), config=W0)
    assert (finding.code, finding.severity) == ("epochs-drift", ERROR)


# seed-ignored ------------------------------------------------------------------------------------

HELD = (*in_each(NOISE, "x"), *in_each(NOISE, "y", number=1))


def test_a_held_generator_of_a_fixed_seed() -> None:
    assert said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=HELD), *seeds(1, 1)) == [
        Finding(
            "seed-ignored",
            WARNING,
            (SPAWN,),
            NOISE,
            "expected seeds 0 and 1 to give other batches, got the same: dataset.noise is drawn "
            "from, but has a fixed seed of its own",
            TAKE_THE_SEED,
        )
    ]


def test_the_seeds_are_named() -> None:
    about = question(seeds=(5, 7))
    facts = epochs_run(SPAWN, (1, 2), (3, 4), randomness=HELD)
    facts = replace(facts, request=about.epochs())
    runs = [run(SPAWN, seed, epochs=(epoch(batch(1)),)) for seed in (5, 7)]
    [finding] = judged(ASKED, about, [facts, *runs])
    assert finding.message.startswith("expected seeds 5 and 7 to give other batches, got the same")


@pytest.mark.parametrize(
    ("randomness", "runs"),
    [
        pytest.param(HELD, seeds(1, 2), id="another seed gives other batches"),
        pytest.param(HELD, seeds(1), id="one seed only"),
        pytest.param(HELD, [seeds(1)[0], replace(seeds(1, 1)[1], outcome=RAISED)], id="one failed"),
        pytest.param((), seeds(1, 1), id="nothing is drawn from"),
        pytest.param(
            (*in_each("random", "x"), *in_each("random", "y", number=1)),
            seeds(1, 1),
            id="only a global generator, of which nothing need reach a sample",
        ),
    ],
)
def test_seeds_that_are_not_said_to_be_ignored(randomness, runs) -> None:
    assert said(epochs_run(SPAWN, (1, 2), (3, 4), randomness=randomness), *runs) == []
