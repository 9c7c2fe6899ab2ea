"""The terminal section, line by line."""

from __future__ import annotations

import pytest

from pytest_dataloader.report.schema import Report
from pytest_dataloader.report.terminal import finding_lines, lines, table

W0 = {"start_method": None, "num_workers": 0}
FORK = {"start_method": "fork", "num_workers": 2}
SPAWN = {"start_method": "spawn", "num_workers": 2}


def run(config, **facts):
    return {**config, "outcome": "ok", "repeat": 0, "seed": 0, "purpose": "content", **facts}


def finding(code="raises", *configurations, severity="error", culprit="words.py:3", **more):
    return {
        "code": code,
        "severity": severity,
        "configurations": list(configurations or [SPAWN]),
        "culprit": culprit,
        "message": "expected an epoch to its end, got ValueError: bad record",
        "advice": "Mend it.",
        **more,
    }


def told(config="spawn-w2", pipeline="test_words.py::test_words", **more):
    return {
        "pipeline": pipeline,
        "config": config,
        "runs": [],
        "findings": [],
        "not_judged": [],
        "judged": True,
        "lacking": None,
        **more,
    }


def report_of(*tellings):
    """A report of told things with their outcomes."""
    report = Report()
    for one, outcome, *reason in tellings:
        report.add(one, outcome, *(reason or [None]))
    return report


def section(report, **options):
    return "\n".join(lines(report, **options))


def test_a_whole_section() -> None:
    slow = finding(
        "slow-import",
        severity="warning",
        culprit="words",
        message="expected importing words to take at most 1 s, but it takes 2.3 s",
        advice="Import heavy packages where they are needed.",
    )
    rates = {"batches_per_s": 22790.4}
    report = report_of(
        (told("w0", runs=[run(W0, startup_s=0.00123, **rates)]), "passed"),
        (
            told(
                "spawn-w2",
                runs=[
                    run(
                        SPAWN,
                        startup_s=3.14159,
                        batches_per_s=34185.6,
                        worker_unique_bytes=230 * 2**20,
                    )
                ],
                findings=[finding(), slow],
                not_judged=["samples per second: the size of a batch is not known"],
            ),
            "failed",
        ),
        (
            told("fork-w2", judged=False, lacking="fork is not available on Windows"),
            "skipped",
            "fork is not available on Windows",
        ),
    )
    assert section(report, width=60) == (
        """\
configuration  passed  failed  skipped  first batch       steady rate  memory/worker  speed-up
w0                  1       0        0    0.00123 s  22,790 batches/s              -         -
fork-w2             0       0        1            -                 -              -         -
spawn-w2            0       1        0       3.14 s  34,186 batches/s        230 MiB      1.5x

test_words.py::test_words
  error raises: words.py:3 [spawn-w2]
      expected an epoch to its end, got ValueError:
      bad record
      To do: Mend it.
  warning slow-import: words [spawn-w2]
      expected importing words to take at most 1 s,
      but it takes 2.3 s
      To do: Import heavy packages where they are
      needed.

checks: 2 ran, 1 skipped, 0 expected to fail, 1 not judged
  skipped by platform: 1 x fork is not available on Windows
  not judged: 1 x samples per second: the size of a batch is not known"""
    )


def test_no_data() -> None:
    assert section(Report()) == "no data: no test of this session used a pipeline"


def test_a_section_without_findings() -> None:
    assert section(report_of((told("w0"), "passed"))) == (
        """\
configuration  passed  failed  skipped  first batch  steady rate  memory/worker  speed-up
w0                  1       0        0            -            -              -         -

checks: 1 ran, 0 skipped, 0 expected to fail, 0 not judged"""
    )


def test_a_recommendation() -> None:
    recommendation = {"lines": ["recommended: DataLoader(dataset, ..., num_workers=2)", "  why"]}
    assert section(report_of((told("w0", recommendation=recommendation), "passed"))).endswith(
        """
test_words.py::test_words: measured by --dl-tune
  recommended: DataLoader(dataset, ..., num_workers=2)
    why

checks: 1 ran, 0 skipped, 0 expected to fail, 0 not judged"""
    )


# Counts ------------------------------------------------------------------------------------------


def test_skips_by_the_platform_stand_apart_from_those_by_the_tests() -> None:
    lacking = told("fork-w2", judged=False, lacking="fork is not available on Windows")
    chosen = told("w0", judged=False)
    report = report_of(
        (lacking, "skipped", "fork is not available on Windows"),
        (lacking, "skipped", "fork is not available on Windows"),
        (chosen, "skipped", "no data here"),
        (chosen, "skipped"),
    )
    assert section(report).partition("\n\n")[2] == (
        """\
checks: 0 ran, 4 skipped, 0 expected to fail, 0 not judged
  skipped by platform: 2 x fork is not available on Windows
  skipped by the tests: 1 x no data here
  skipped by the tests: 1 x no reason given"""
    )


def test_what_could_not_be_judged_is_no_skip_by_anyone() -> None:
    report = report_of((told("w0", not_judged=["no rate"]), "skipped", "not judged: no rate"))
    assert section(report).splitlines()[1:] == [
        "w0                  0       0        1            -            -              -         -",
        "",
        "checks: 1 ran, 0 skipped, 0 expected to fail, 1 not judged",
        "  not judged: 1 x no rate",
    ]


def test_expected_findings() -> None:
    expected = finding(severity="error", expected=True)
    report = report_of((told(findings=[expected, finding("hang")]), "xfailed"))
    assert section(report).splitlines()[1:] == [
        "spawn-w2            0       0        0            -            -              -         -",
        "",
        "test_words.py::test_words",
        "  expected raises: words.py:3 [spawn-w2]",
        "      expected an epoch to its end, got ValueError: bad record",
        "      To do: Mend it.",
        "  error hang: words.py:3 [spawn-w2]",
        "      expected an epoch to its end, got ValueError: bad record",
        "      To do: Mend it.",
        "",
        "checks: 1 ran, 0 skipped, 1 expected to fail, 0 not judged",
    ]


# Findings ----------------------------------------------------------------------------------------


def test_information_comes_without_advice_unless_verbose() -> None:
    info = finding(severity="info")
    first = [
        "  info raises: words.py:3 [spawn-w2]",
        "      expected an epoch to its end, got ValueError: bad record",
    ]
    assert list(finding_lines(info, 88)) == first
    assert list(finding_lines(info, 88, -1)) == first
    assert list(finding_lines(info, 88, 1)) == [*first, "      To do: Mend it."]
    report = report_of((told(findings=[info]), "passed"))
    assert "To do" not in section(report)
    assert "To do: Mend it." in section(report, verbose=1)


def test_a_finding_of_several_configurations_and_no_culprit() -> None:
    [head, *_] = finding_lines(finding("hang", FORK, SPAWN, culprit=None), 88)
    assert head == "  error hang: [fork-w2, spawn-w2]"


def test_long_words_are_not_broken_and_line_breaks_are_kept() -> None:
    long = "/very/long/" + 80 * "x"
    one = finding(message=f"see {long}\nand-then-this")
    assert list(finding_lines(one, 60))[1:4] == [
        "      see",
        f"      {long}",
        "      and-then-this",
    ]


def test_equal_findings_of_several_pipelines_are_told_once() -> None:
    shared, own = finding(), finding("hang", culprit="words.py:9")
    report = report_of(
        (told(pipeline="test_a", findings=[own, shared]), "failed"),
        (told(pipeline="test_b", findings=[shared]), "failed"),
        (told(pipeline="test_c", findings=[shared, own]), "failed"),
        (told(pipeline="test_d"), "passed"),
        (told(pipeline="test_e", findings=[finding("slow")]), "failed"),
    )
    kept = [line for line in section(report).splitlines()[3:] if not line.startswith("      ")]
    assert kept == [
        "test_a",
        "test_c",
        "  error hang: words.py:9 [spawn-w2]",
        "test_a",
        "test_b",
        "test_c",
        "  error raises: words.py:3 [spawn-w2]",
        "test_e",
        "  error slow: words.py:3 [spawn-w2]",
        "",
        "checks: 5 ran, 0 skipped, 0 expected to fail, 0 not judged",
    ]


def test_findings_under_one_heading_stand_in_the_order_found() -> None:
    report = report_of(
        (told(pipeline="test_a", findings=[finding("hang"), finding("raises")]), "failed"),
        (told(pipeline="test_b", findings=[finding("raises"), finding("hang")]), "failed"),
    )
    kept = [line for line in section(report).splitlines()[3:] if not line.startswith("      ")]
    assert kept[:4] == [
        "test_a",
        "test_b",
        "  error hang: words.py:3 [spawn-w2]",
        "  error raises: words.py:3 [spawn-w2]",
    ]


@pytest.mark.parametrize(
    "other",
    [
        finding("hang"),
        finding(severity="warning"),
        finding(culprit="words.py:4"),
        finding(message="expected something else"),
        finding(expected=True),
    ],
)
def test_findings_that_differ_are_told_each_under_its_own_pipeline(other) -> None:
    report = report_of(
        (told(pipeline="test_a", findings=[finding()]), "failed"),
        (told(pipeline="test_b", findings=[other]), "failed"),
    )
    text = section(report).splitlines()
    assert text.index("test_b") > text.index("test_a") + 1
    assert sum(line.endswith("[spawn-w2]") for line in text) == 2


def test_a_finding_that_is_told_once_has_all_its_configurations() -> None:
    report = report_of(
        (told(pipeline="test_a", findings=[finding("hang", FORK)]), "failed"),
        (told(pipeline="test_b", findings=[finding("hang", SPAWN, FORK)]), "failed"),
    )
    assert "  error hang: words.py:3 [fork-w2, spawn-w2]" in section(report).splitlines()
    of_a, of_b = (p.findings[0]["configurations"] for p in report.pipelines.values())
    assert (of_a, of_b) == ([FORK], [SPAWN, FORK])


# The table ---------------------------------------------------------------------------------------


def cells(*runs, name="spawn-w2", pipelines=None):
    """The last four cells of a row: first batch, rate, memory, speed-up."""
    pipelines = pipelines or [runs]
    report = report_of(
        *((told(name, f"test_{n}", runs=list(some)), "passed") for n, some in enumerate(pipelines))
    )
    [row] = [line for line in table(report) if line.startswith(name)]
    return [cell.strip() for cell in row.split("  ") if cell.strip()][4:]


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (1234567.8, "1,234,568 batches/s"),
        (22790.0, "22,790 batches/s"),
        (1200.0, "1,200 batches/s"),
        (412.34, "412 batches/s"),
        (100.0, "100 batches/s"),
        (99.996, "100 batches/s"),
        (99.5, "99.5 batches/s"),
        (41.2, "41.2 batches/s"),
        (41.23456, "41.23 batches/s"),
        (7.0, "7 batches/s"),
        (0.52, "0.52 batches/s"),
        (0.0123456, "0.01235 batches/s"),
    ],
)
def test_rates_are_shown_without_exponents(rate, shown) -> None:
    assert cells(run(SPAWN, batches_per_s=rate))[1] == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1234.5, "1,234 s"), (12.345, "12.3 s"), (3.0, "3 s"), (0.0123456, "0.0123 s")],
)
def test_seconds_to_the_first_batch(seconds, shown) -> None:
    assert cells(run(SPAWN, startup_s=seconds))[0] == shown


def test_the_first_batch_of_a_warm_start_is_not_shown_as_that_of_a_start() -> None:
    true = run(SPAWN, startup_s=3.0, start="true")
    warm = run(SPAWN, startup_s=0.1, start="warm", seed=1)
    assert cells(true, warm)[0] == "3 s"
    assert cells(warm)[0] == "-"


def test_repeats_and_runs_that_failed_are_not_in_the_table() -> None:
    repeat = run(SPAWN, startup_s=9.0, repeat=1)
    failed = run(SPAWN, startup_s=9.0, outcome="died")
    other = run(FORK, startup_s=9.0)
    assert cells(repeat, failed, other) == ["-", "-", "-", "-"]


def test_several_pipelines_are_shown_by_their_median() -> None:
    def one(value):
        return [run(SPAWN, startup_s=value, batches_per_s=value, worker_unique_bytes=value * 2**20)]

    assert cells(pipelines=[one(1), one(2), one(60)])[:3] == ["2 s", "2 batches/s", "2 MiB"]


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(5.0, "0.5x"), (19.7, "2x"), (15.3, "1.5x"), (123.4, "12x"), (12345, "1,234x")],
)
def test_speed_up_over_0_workers(rate, shown) -> None:
    assert cells(run(SPAWN, batches_per_s=rate), run(W0, batches_per_s=10.0))[3] == shown


def test_speed_up_is_the_median_of_each_pipeline_s_own() -> None:
    def pair(alone, beside):
        return [run(W0, batches_per_s=alone), run(SPAWN, batches_per_s=beside)]

    assert cells(pipelines=[pair(1, 2), pair(100, 300), pair(10, 80)])[3] == "3x"


def test_speed_up_is_over_0_workers_of_the_same_pinning() -> None:
    pinned = {"pin_memory": True}
    rate = run(SPAWN | pinned, batches_per_s=30.0)
    alone = run(W0 | pinned, batches_per_s=10.0)
    assert cells(rate, alone, name="spawn-w2-pinned")[3] == "3x"
    assert cells(rate, run(W0, batches_per_s=10.0), name="spawn-w2-pinned")[3] == "-"


def test_without_a_rate_for_0_workers_there_is_no_speed_up() -> None:
    assert cells(run(SPAWN, batches_per_s=20.0))[3] == "-"
    assert cells(run(W0, batches_per_s=20.0), name="w0")[3] == "-"


def test_rows_stand_by_start_method_and_number_of_workers() -> None:
    names = ["spawn-w10", "threads-w2", "spawn-w2", "forkserver-w2", "fork-w2-pinned", "spawn"]
    names += ["fork-w2", "w0-pinned", "w0"]
    report = report_of(*((told(name), "passed") for name in names))
    assert [line.split()[0] for line in table(report)] == [
        "configuration",
        "w0",
        "w0-pinned",
        "fork-w2",
        "fork-w2-pinned",
        "spawn",
        "spawn-w2",
        "spawn-w10",
        "forkserver-w2",
        "threads-w2",
    ]


def test_tests_are_counted_by_configuration() -> None:
    report = report_of(
        (told("w0"), "passed"),
        (told("w0"), "passed"),
        (told("w0"), "failed"),
        (told("spawn-w2"), "failed"),
        (told("spawn-w2"), "xfailed"),
    )
    assert [line.split()[:4] for line in table(report)][1:] == [
        ["w0", "2", "1", "0"],
        ["spawn-w2", "0", "1", "0"],
    ]
