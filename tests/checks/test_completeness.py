"""Completeness: what is said of samples that come twice or never, of lengths and of epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import FORK, SPAWN, W0, dataset, epochs_run, judged, other_in_worker, question

from pytest_dataloader.checks import completeness
from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import RAISED, REITERATE, RunRequest

TAKE_A_SHARE = (
    "Let each worker take its share in __iter__, by get_worker_info().id and num_workers."
)
BY_STRIDE = (
    "Share out by stride, range(id, n, num_workers), which leaves nothing over. Use drop_last only "
    "where an incomplete batch would do harm."
)
TRUE_LENGTH = (
    "Return the number of samples that __iter__ yields over all workers (the number of batches "
    "that a batch sampler asks for), or no length at all. Filter when the dataset is built, not "
    "while it is read."
)
ITERATE_AGAIN = (
    "Hold what can be iterated again (a list, a path), and make the iterator in __iter__."
)
GIVE_A_DEFAULT = (
    "Give next() a default, or catch StopIteration where it arises and raise a LookupError that "
    "says what was not found."
)
FEWER_WORKERS = (
    "Use no more workers than shards, write more shards, or divide by rows within a shard."
)
SHARE_IT = (
    "Hold the value in shared memory, in a tensor after share_memory_() for instance, or do "
    "without persistent workers."
)

ASKED = Complete()
STREAM = dataset()
MAPPED = dataset(iterable=False, length=4)


def said(*facts, config=SPAWN):
    return judged(ASKED, question(config), facts)


def stream(config, *epochs, described=STREAM, workers=(1, 1), **facts):
    """The run of an iterable dataset whose workers have all given something."""
    made = epochs_run(config, *epochs, dataset=described, **facts)
    given = tuple(replace(one, worker_samples=workers) for one in made.epochs)
    return replace(made, epochs=given)


def alone(*epochs, **facts):
    return stream(W0, *epochs, workers=(4,), **facts)


FOUR = alone((1, 2, 3, 4), (1, 2, 3, 4))


# What is run -------------------------------------------------------------------------------------


def test_a_run_of_several_epochs_and_the_same_without_workers() -> None:
    assert completeness.needs(ASKED, question(seeds=(3, 4))) == [
        RunRequest(SPAWN, 3, repeat=1, epochs=3),
        RunRequest(W0, 3, repeat=1, epochs=3),
        RunRequest(SPAWN, 3, purpose=REITERATE),
    ]


def test_a_run_that_fails_in_a_later_epoch_is_not_judged() -> None:
    failing = epochs_run(SPAWN, (1, 2), outcome=RAISED, reason="ValueError: bad record")
    assert said(failing, FOUR) == [
        NotJudged("a run of several epochs did not come to its end: ValueError: bad record")
    ]


def test_what_the_data_is_must_be_known() -> None:
    failing = replace(FOUR, outcome=RAISED)
    whole = stream(SPAWN, (1, 2, 3, 4), (1, 2, 3, 4))
    assert said(whole, failing) == [
        NotJudged("what the data is without workers is not known: that run fails")
    ]
    assert said(failing, config=W0) == [
        NotJudged("a run of several epochs did not come to its end: None")
    ]


# duplicated-samples ------------------------------------------------------------------------------


def test_every_worker_gives_the_whole_stream() -> None:
    twice = stream(SPAWN, (1, 1, 2, 2, 3, 3, 4, 4), (1, 1, 2, 2, 3, 3, 4, 4))
    assert said(twice, FOUR) == [
        Finding(
            "duplicated-samples",
            ERROR,
            (SPAWN,),
            "dataset.__iter__",
            "expected each of the 4 samples once, got 8 samples under spawn-w2, 4 too many; the "
            "first are samples 0, 1, 2, 3: every worker gives the whole stream",
            TAKE_A_SHARE,
        )
    ]


def test_the_place_of_the_method_is_the_culprit() -> None:
    places = {"__iter__": str(Path.cwd() / "words.py") + ":7"}
    twice = stream(SPAWN, (1, 2, 2), (1, 2, 2), described=dataset(places=places))
    [finding] = said(twice, alone((1, 2), (1, 2)))
    assert finding.culprit == "words.py:7"
    assert finding.message == (
        "expected each of the 2 samples once, got 3 samples under spawn-w2, 1 too many; the first "
        "are samples 1"
    )


def test_one_sample_twice_and_another_never() -> None:
    overlapping = stream(SPAWN, (1, 2, 2, 3), (1, 2, 2, 3))
    more, fewer = said(overlapping, FOUR)
    assert (more.code, fewer.code) == ("duplicated-samples", "lost-samples")
    got = "expected each of the 4 samples once, got 4 samples under spawn-w2"
    assert more.message == f"{got}, 1 too many; the first are samples 1"
    assert fewer.message == f"{got}, 1 never came; the first are samples 3"


def test_one_worker_that_gives_the_whole_stream_is_sound() -> None:
    config = LoaderConfig("spawn", 1)
    assert said(stream(config, (1, 2, 3, 4), (1, 2, 3, 4), workers=(4,)), FOUR, config=config) == []


def test_samples_that_are_random_are_counted() -> None:
    truth = alone((1, 2, 3), (4, 5, 6))
    more = stream(SPAWN, (7, 8, 9, 1, 2, 3), (1, 2, 3, 4, 5, 6))
    [finding] = said(more, truth)
    assert finding.code == "duplicated-samples"
    assert finding.message == (
        "expected each of the 3 samples once, got 6 samples under spawn-w2, 3 too many: every "
        "worker gives the whole stream"
    )
    fewer = stream(SPAWN, (7, 8), (1, 2))
    [finding] = said(fewer, truth)
    assert finding.code == "lost-samples"
    assert finding.message == (
        "expected each of the 3 samples once, got 2 samples under spawn-w2, 1 never came"
    )
    assert said(stream(SPAWN, (7, 8, 9), (1, 2, 3)), truth) == []


def test_samples_that_only_workers_make_are_counted() -> None:
    truth = alone((1, 2, 3, 4), (1, 2, 3, 4))
    assert said(stream(SPAWN, (1, 2, 7, 8), (1, 2, 7, 8)), truth) == []
    fewer, more = stream(SPAWN, (1, 7), (1, 7)), stream(SPAWN, (1, 2, 3, 4, 7), (1, 2, 3, 4, 7))
    assert [f.message for f in [*said(fewer, truth), *said(more, truth)]] == [
        "expected each of the 4 samples once, got 2 samples under spawn-w2, 2 never came",
        "expected each of the 4 samples once, got 5 samples under spawn-w2, 1 too many",
    ]


def test_samples_that_come_twice_are_told_also_beside_others_that_only_workers_make() -> None:
    [finding] = said(stream(SPAWN, (1, 1, 7, 8), (1, 1, 7, 8)), FOUR)
    assert finding.message == (
        "expected each of the 4 samples once, got 4 samples under spawn-w2, 1 too many; the first "
        "are samples 0"
    )


def test_samples_without_content_are_counted() -> None:
    def without_content(facts):
        return replace(
            facts,
            epochs=tuple(
                replace(one, sample_ids=(None,) * len(one.sample_ids)) for one in facts.epochs
            ),
        )

    truth = without_content(FOUR)
    assert said(without_content(stream(SPAWN, (1, 2, 3, 4), (1, 2, 3, 4))), truth) == []
    twice = without_content(stream(SPAWN, (1, 2, 3, 4, 1), (1, 2, 3, 4, 1)))
    assert [f.message for f in said(twice, truth)] == [
        "expected each of the 4 samples once, got 5 samples under spawn-w2, 1 too many"
    ]


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            [stream(SPAWN, (3, 1, 2, 4), (3, 1, 2, 4)), FOUR], id="in another order, once each"
        ),
        pytest.param(
            [stream(SPAWN, (1, 1, 2, 2), (1, 1, 2, 2)), alone((1, 2, 1, 2), (1, 2, 1, 2))],
            id="samples that the data itself has twice",
        ),
        pytest.param(
            [stream(SPAWN, (1, 1), (1, 1), described=MAPPED), FOUR],
            id="of a map-style dataset the sampler decides",
        ),
        pytest.param([stream(SPAWN, (1, 2), (1, 2)), alone((), ())], id="nothing without workers"),
        pytest.param([FOUR], id="no run with workers"),
    ],
)
def test_samples_that_come_once(facts) -> None:
    assert said(*facts) == []


# lost-samples ------------------------------------------------------------------------------------


def test_a_share_that_is_rounded_down() -> None:
    short = stream(SPAWN, (1, 2), (1, 2))
    assert said(short, alone((1, 2, 3), (1, 2, 3))) == [
        Finding(
            "lost-samples",
            ERROR,
            (SPAWN,),
            "dataset.__iter__",
            "expected each of the 3 samples once, got 2 samples under spawn-w2, 1 never came; the "
            "first are samples 2",
            BY_STRIDE,
        )
    ]


def test_what_drop_last_drops_is_information() -> None:
    described = dataset(drop_last=True)
    short = stream(SPAWN, (1, 2), (1, 2), described=described)
    assert said(short, FOUR) == [
        Finding(
            "lost-samples",
            INFO,
            (SPAWN,),
            "dataset.__iter__",
            "expected each of the 4 samples once, got 2 samples under spawn-w2, 2 never came; the "
            "first are samples 2, 3: drop_last drops each worker's last, smaller batch",
            BY_STRIDE,
        )
    ]


DISTRIBUTED = dataset(
    iterable=False, length=4, sampler="torch.utils.data.distributed.DistributedSampler"
)


def sampled_by(described, *indices):
    facts = epochs_run(SPAWN, (1, 2), (1, 2), dataset=described, expected_batches=2)
    return replace(facts, epochs=tuple(replace(e, indices=indices) for e in facts.epochs))


def test_what_a_distributed_sampler_leaves_to_other_ranks_is_information() -> None:
    assert said(sampled_by(DISTRIBUTED, 0, 2)) == [
        Finding(
            "lost-samples",
            INFO,
            (SPAWN,),
            "loader.sampler",
            "expected 4 samples over all ranks; this rank gives 2, 2 are left to others",
            BY_STRIDE,
        )
    ]


@pytest.mark.parametrize(
    ("described", "indices"),
    [
        (DISTRIBUTED, (0, 1, 2, 3)),
        (DISTRIBUTED, (0, 1, 2, 3, 0)),
        (replace(DISTRIBUTED, length=None), (0, 2)),
        (MAPPED, (0, 2)),
    ],
)
def test_a_sampler_that_leaves_nothing_or_is_the_user_s_choice(described, indices) -> None:
    assert said(sampled_by(described, *indices)) == []


def test_indices_that_are_not_numbers_are_not_judged() -> None:
    facts = epochs_run(SPAWN, (1, 2), (1, 2), dataset=DISTRIBUTED)
    assert said(facts) == []


# empty-epoch -------------------------------------------------------------------------------------


def test_a_second_epoch_without_samples() -> None:
    assert said(alone((1, 2), (), ()), config=W0) == [
        Finding(
            "empty-epoch",
            ERROR,
            (W0,),
            "dataset.__iter__",
            "expected about 2 samples in each epoch, got none in epoch 1",
            ITERATE_AGAIN,
        )
    ]


def test_an_iterator_that_is_used_up_is_the_culprit() -> None:
    described = dataset(iterators=("dataset.rows", "dataset.more"))
    [finding] = said(alone((1, 2), (1, 2), (), described=described), config=W0)
    assert finding.culprit == "dataset.rows"
    assert finding.message == (
        "expected about 2 samples in each epoch, got none in epoch 2: dataset.rows is an iterator "
        "that the first epoch used up"
    )


def test_a_stream_that_is_used_up_without_workers_is_still_the_truth() -> None:
    used_up = alone((1, 2, 3, 4), (), ())
    with_workers = stream(SPAWN, (1, 2, 3, 4), (1, 2, 3, 4))
    assert said(with_workers, used_up) == []
    twice = stream(SPAWN, (1, 1, 2, 2, 3, 3, 4, 4), (1, 2))
    assert [f.code for f in said(twice, used_up)] == ["duplicated-samples"]


def test_a_dataset_that_is_empty_from_the_first_epoch_on_has_no_second_one_to_miss() -> None:
    assert said(alone((), (), ()), config=W0) == []


# wrong-length ------------------------------------------------------------------------------------


def test_a_length_that_is_not_the_number_of_samples() -> None:
    described = dataset(length=5)
    assert said(alone((1, 2), (1, 2), described=described), config=W0) == [
        Finding(
            "wrong-length",
            ERROR,
            (W0,),
            "dataset.__len__",
            "expected len(dataset) = 5 samples, got 2",
            TRUE_LENGTH,
        )
    ]


@pytest.mark.parametrize(
    "described",
    [
        dataset(length=2),
        dataset(length=None),
        dataset(length=5, drop_last=True),
        dataset(length=5, iterable=False),
    ],
)
def test_lengths_that_are_true_or_not_comparable(described) -> None:
    assert said(alone((1, 2), (1, 2), described=described), config=W0) == []


def test_a_length_is_judged_without_workers_only() -> None:
    described = dataset(length=9)
    facts = stream(SPAWN, (1, 2), (1, 2), described=described)
    assert said(facts, alone((1, 2), (1, 2), described=described)) == []


# silent-truncation -------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [W0, FORK, SPAWN], ids=lambda config: config.id)
def test_an_epoch_that_ends_early(config) -> None:
    facts = epochs_run(config, (1, 2, 3), (1, 2), (1,), dataset=MAPPED, expected_batches=3)
    assert said(facts, config=config) == [
        Finding(
            "silent-truncation",
            ERROR,
            (config,),
            "dataset.__getitem__",
            "expected 3 batches as len(loader) says, got 2 in epoch 1 without an error: a "
            "StopIteration in the making of a sample or batch ends the epoch",
            GIVE_A_DEFAULT,
        )
    ]


@pytest.mark.parametrize(("expected", "codes"), [(3, ["silent-truncation"]), (2, [])])
def test_the_base_run_is_enough_to_see_an_epoch_end_early(expected, codes) -> None:
    base = epochs_run(SPAWN, (1, 2), dataset=MAPPED, expected_batches=expected)
    base = replace(base, request=question(SPAWN).base())
    assert [finding.code for finding in said(base)] == codes


@pytest.mark.parametrize("expected", [2, None])
def test_epochs_that_have_all_their_batches(expected) -> None:
    assert said(epochs_run(SPAWN, (1, 2), (1, 2), dataset=MAPPED, expected_batches=expected)) == []


def asked(facts: Any, *counts: int) -> Any:
    """The run with the number of batches that the sampler asked for in each epoch."""
    told = zip(facts.epochs, counts, strict=True)
    return replace(facts, epochs=tuple(replace(epoch, asked=count) for epoch, count in told))


@pytest.mark.parametrize("given", [2, 4])
def test_a_sampler_that_asks_for_another_number_than_its_length(given) -> None:
    samples = tuple(range(given))
    facts = epochs_run(
        SPAWN, samples, samples, dataset=MAPPED, expected_batches=3, order="loader.batch_sampler"
    )
    (finding,) = said(asked(facts, given, given))

    assert (finding.code, finding.severity) == ("wrong-length", ERROR)
    assert finding.culprit == "loader.batch_sampler"
    assert finding.message == (
        f"expected 3 batches as len(loader) says, got {given} in epoch 0: loader.batch_sampler "
        f"asks for {given}"
    )


def test_a_sampler_whose_epochs_have_other_lengths() -> None:
    facts = epochs_run(SPAWN, (1, 2, 3), (1, 2), dataset=MAPPED, expected_batches=3)
    (finding,) = said(asked(facts, 3, 2))

    assert (finding.code, finding.severity) == ("wrong-length", WARNING)
    assert finding.message == (
        "expected 3 batches as len(loader) says, got 2 in epoch 1: loader.sampler asks for 2, and "
        "for another number in other epochs"
    )


def test_an_epoch_that_ends_before_a_sampler_that_is_short_itself() -> None:
    facts = epochs_run(SPAWN, (1,), (1,), dataset=MAPPED, expected_batches=3)

    assert [f.code for f in said(asked(facts, 2, 2))] == ["silent-truncation"]


# empty-worker ------------------------------------------------------------------------------------


def test_a_worker_that_gives_nothing() -> None:
    assert said(stream(SPAWN, (1, 2, 3, 4), (1, 2, 3, 4), workers=(4,)), FOUR) == [
        Finding(
            "empty-worker",
            WARNING,
            (SPAWN,),
            "dataset.__iter__",
            "expected 2 workers to have samples, but only 1 gave any of the 4",
            FEWER_WORKERS,
        )
    ]


def test_fewer_samples_than_workers_leave_one_idle_rightly() -> None:
    assert said(stream(SPAWN, (1,), (1,), workers=(1,)), alone((1,), (1,))) == []


def test_a_map_style_dataset_has_no_shards() -> None:
    assert said(stream(SPAWN, (1, 2), (1, 2), workers=(2,), described=MAPPED), FOUR) == []


# stale-worker-state ------------------------------------------------------------------------------

PERSISTENT = dataset(iterable=False, length=2, persistent=True)
HEARD = ("dataset.epoch", "dataset.other")


def told_epochs(config, *epochs, described=PERSISTENT, **facts):
    return epochs_run(config, *epochs, dataset=described, epoch_fields=HEARD, **facts)


def test_persistent_workers_do_not_hear_of_the_epoch() -> None:
    facts = told_epochs(SPAWN, (0, 0), (0, 0)), told_epochs(W0, (0, 0), (1, 1))
    assert said(*facts) == [
        Finding(
            "stale-worker-state",
            ERROR,
            (SPAWN,),
            "dataset.epoch",
            "expected the second epoch to see what set_epoch(1) sets, but persistent workers keep "
            "the dataset.epoch of their start: their epochs are the same, without workers they "
            "differ",
            SHARE_IT,
        )
    ]


def test_a_sampler_that_shuffles_does_not_hide_it() -> None:
    two = epochs_run(SPAWN, (1, 2), (2, 1), dataset=PERSISTENT, epoch_fields=HEARD)
    assert [f.code for f in said(two, told_epochs(W0, (1, 2), (7, 8)))] == ["stale-worker-state"]


@pytest.mark.parametrize(
    ("with_workers", "without"),
    [
        pytest.param(
            told_epochs(SPAWN, (0, 0), (1, 1)), told_epochs(W0, (0, 0), (1, 1)), id="it is shared"
        ),
        pytest.param(
            told_epochs(SPAWN, (0, 0), (0, 0)), told_epochs(W0, (0, 0), (0, 0)), id="no use of it"
        ),
        pytest.param(
            told_epochs(SPAWN, (0, 0), (0, 0), described=replace(PERSISTENT, persistent=False)),
            told_epochs(W0, (0, 0), (1, 1)),
            id="workers are started anew",
        ),
        pytest.param(
            epochs_run(SPAWN, (0, 0), (0, 0), dataset=PERSISTENT),
            told_epochs(W0, (0, 0), (1, 1)),
            id="set_epoch sets nothing",
        ),
    ],
)
def test_epochs_that_reach_the_workers_or_need_not(with_workers, without) -> None:
    assert said(with_workers, without) == []


# What workers keep to themselves -----------------------------------------------------------------


def test_a_counter_that_only_workers_change() -> None:
    counted = other_in_worker("dataset.seen", "int 0", "int 8")
    cached = other_in_worker("dataset.cache", "{}", "dict of 8")
    alone = epochs_run(
        W0, (1, 2), (1, 2), dataset=dataset(iterable=False), changed=(counted, cached)
    )
    facts = (epochs_run(SPAWN, (1, 2), (1, 2), dataset=dataset(iterable=False)), alone)
    (finding,) = said(*facts)
    assert (finding.code, finding.severity, finding.culprit) == (
        "stale-worker-state",
        INFO,
        "dataset.seen",
    )
    assert finding.message == (
        "expected what is set as samples are made to be seen where it is read; dataset.seen goes "
        "from int 0 to int 8 without workers, but workers change copies of their own and the test "
        "process keeps int 0; so are dataset.cache"
    )


def test_generators_and_stored_data_are_told_elsewhere() -> None:
    drawn_from = other_in_worker("dataset.rng", "Random <a>", "Random <b>")
    edited = other_in_worker("dataset.x", "ndarray [1]", "ndarray [2]")
    alone = epochs_run(
        W0,
        (1, 2),
        (1, 2),
        dataset=dataset(iterable=False),
        changed=(drawn_from, edited),
        drifted=(edited,),
    )
    assert said(epochs_run(SPAWN, (1, 2), (1, 2), dataset=dataset(iterable=False)), alone) == []
