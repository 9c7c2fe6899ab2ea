"""Ranks: what is said of how they share the data, and of their random numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import FORK, W0, dataset, drawn, epochs_run, judged, question, run

from pytest_dataloader.checks import distributed
from pytest_dataloader.checks.asked import Complete, Seeding
from pytest_dataloader.checks.finding import ERROR, INFO, NotJudged
from pytest_dataloader.observe.facts import RAISED, RunRequest

SHARED = Complete(world_size=2)
DRAWN = Seeding(world_size=2)
MAP_STYLE = dataset(iterable=False, length=4)


def of_rank(rank, *indices, config=FORK, asked=SHARED, **facts):
    """A rank's run of two epochs over these indices, in batches of one."""
    made = epochs_run(config, indices, indices, **{"dataset": MAP_STYLE, **facts})
    epochs = tuple(replace(epoch, indices=indices) for epoch in made.epochs)
    request = distributed.needs(asked, question(config))[rank]
    return replace(made, request=request, epochs=epochs)


def said(*facts, asked=SHARED, config=FORK):
    check = (
        distributed.ranks_share_the_data if asked is SHARED else distributed.ranks_draw_differently
    )
    return list(judged_by(check, asked, facts, config))


def judged_by(check, asked, facts, config):
    from pytest_dataloader.checks.evidence import Evidence

    return check(Evidence(question(config), {one.request: one for one in facts}), asked)


def test_a_run_a_rank_seeded_alike_to_count_and_apart_to_compare() -> None:
    assert distributed.needs(SHARED, question(FORK, seeds=(3,))) == [
        RunRequest(FORK, 3, repeat=1, epochs=2, rank=0, world_size=2),
        RunRequest(FORK, 3, repeat=1, epochs=2, rank=1, world_size=2),
    ]
    assert [one.seed for one in distributed.needs(DRAWN, question(FORK, seeds=(3,)))] == [3, 1003]
    assert distributed.needs(Complete(), question()) == []


def test_ranks_that_cover_the_data_once_say_nothing() -> None:
    assert said(of_rank(0, 0, 2), of_rank(1, 1, 3)) == []


def test_ranks_that_share_samples() -> None:
    (finding,) = said(of_rank(0, 0, 1, 2, 3), of_rank(1, 0, 1, 2, 3))
    assert (finding.code, finding.severity, finding.culprit) == (
        "rank-overlap",
        ERROR,
        "loader.sampler",
    )
    assert finding.message == (
        "expected each of 4 samples in one of 2 ranks, but 4 come again, 4 times in all; the first "
        "are samples 0, 1, 2, 3 (sample 0 in ranks 0, 1); the ranks give 4, 4"
    )


def test_samples_that_come_in_no_rank() -> None:
    (finding,) = said(of_rank(0, 0), of_rank(1, 2))
    assert (finding.code, finding.severity) == ("lost-samples", ERROR)
    assert finding.message == (
        "expected each of 4 samples in one of 2 ranks, but 2 come in none; the first are samples "
        "1, 3"
    )


def test_padding_is_information() -> None:
    three = dataset(iterable=False, length=3)
    (finding,) = said(of_rank(0, 0, 2, dataset=three), of_rank(1, 1, 0, dataset=three))
    assert (finding.code, finding.severity) == ("duplicated-samples", INFO)
    assert finding.message == (
        "expected 3 samples over 2 ranks, got 1 more: the sampler repeats some, so that all ranks "
        "have equally many"
    )


def test_what_evens_the_ranks_out_is_information() -> None:
    five = dataset(iterable=False, length=5, drop_last=True)
    (finding,) = said(of_rank(0, 0, 2, dataset=five), of_rank(1, 1, 3, dataset=five))
    assert (finding.code, finding.severity) == ("lost-samples", INFO)
    assert finding.message == (
        "expected each of 5 samples in one of 2 ranks, but 1 come in none; the first are samples "
        "4: they are left out so that all ranks have equally many"
    )


def test_ranks_of_other_lengths() -> None:
    found = said(of_rank(0, 0, 1, 2), of_rank(1, 3))
    assert [finding.message for finding in found] == [
        (
            "expected equally many batches in each of 2 ranks, got 3, 1: in distributed training "
            "the ranks with more of them wait for the others for ever"
        )
    ]


def test_streams_are_told_by_the_content_of_samples() -> None:
    stream = dataset(places={"__iter__": "/data/stream.py:5"})
    alone = epochs_run(W0, (1, 2), (1, 2), dataset=stream)
    half = [of_rank(0, 1, dataset=stream), of_rank(1, 2, dataset=stream)]
    assert said(alone, *half) == []
    (finding,) = said(alone, *(of_rank(r, 1, 2, dataset=stream) for r in (0, 1)))
    assert (finding.code, finding.culprit) == ("rank-overlap", "/data/stream.py:5")
    assert said(*half) == [
        NotJudged("the ranks' samples cannot be told apart by their content; give dl_sample_key")
    ]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (
            {"outcome": RAISED, "reason": "ValueError: no"},
            "the ranks are not judged: rank 1: ValueError: no",
        ),
        (
            {"notes": ("the loader's sampler is made once for all ranks; give it",)},
            "the ranks are not judged: the loader's sampler is made once for all ranks; give it",
        ),
    ],
)
def test_ranks_that_could_not_be_run(second, why) -> None:
    assert said(of_rank(0, 0, 2), of_rank(1, 1, 3, **second)) == [NotJudged(why)]


# duplicate-randomness ----------------------------------------------------------------------------


def drawing(path, *firsts, config=FORK):
    return [
        of_rank(
            rank,
            rank,
            asked=DRAWN,
            config=config,
            randomness=(drawn(path, f"{first}a", f"{first}b", first=first),),
        )
        for rank, first in enumerate(firsts)
    ]


def test_ranks_that_draw_the_same_numbers() -> None:
    (finding,) = said(*drawing("dataset.rng", "s", "s"), asked=DRAWN)
    assert (finding.code, finding.culprit) == ("duplicate-randomness", "dataset.rng")
    assert finding.message == (
        "expected each of 2 ranks to draw random numbers of its own when each has a seed of its "
        "own, but dataset.rng begins in the same state in several of them: dataset.rng has a seed "
        "that is the same in all ranks"
    )


def test_a_global_generator_is_seeded_through_the_loader() -> None:
    (finding,) = said(*drawing("torch", "s", "s"), asked=DRAWN)
    assert finding.culprit == "loader.generator"


@pytest.mark.parametrize(
    ("path", "config"), [("dataset.rng", FORK), ("loader.sampler.generator", FORK), ("torch", W0)]
)
def test_streams_of_their_own_and_a_common_order_say_nothing(path, config) -> None:
    firsts = ("s", "t") if path == "dataset.rng" else ("s", "s")
    assert said(*drawing(path, *firsts, config=config), asked=DRAWN, config=config) == []


def test_the_families_ask_for_ranks() -> None:
    facts = [epochs_run(FORK, (0, 1, 2, 3), (0, 1, 2, 3), dataset=MAP_STYLE), run(W0)]
    overlap = [of_rank(r, 0, 1, 2, 3) for r in (0, 1)]
    assert [f.code for f in judged(SHARED, question(FORK), [*facts, *overlap])] == ["rank-overlap"]
    alike = drawing("dataset.rng", "s", "s")
    assert [f.code for f in judged(DRAWN, question(FORK), [*facts, *alike])] == [
        "duplicate-randomness"
    ]
