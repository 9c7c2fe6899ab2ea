"""--dl-tune, the machine in the header, and what a stalled loop is told, in one session."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, needs_fork

pytestmark = needs_fork

SOURCE = """
    import time

    import pytest


    class Sleeps:
        def __len__(self):
            return 16

        def __getitem__(self, index):
            time.sleep(0.01)
            return index


    @pytest.fixture
    def dl_make_dataset():
        return Sleeps


    @pytest.fixture
    def dl_loader_kwargs():
        return {"batch_size": 2}


    @pytest.mark.dl_throughput(step_ms=1, max_stall=0.05)
    def test_stalls(): ...


    @pytest.mark.dl_throughput(step_ms=1, max_stall=0.05)
    def test_shares_the_pipeline(): ...
    """


# A short sweep: passes of a moment, and no more workers than CPUs for a loader that waits.
SHORT = """
    from pytest_dataloader import advise

    advise.PASS_S = 0.05
    advise._WAITING_A_CPU = 1
    """


@pytest.fixture(scope="module")
def tuned(run: Runner) -> Session:
    options = ("-v", "--dl-tune", "--dl-start-methods=fork", "--dl-num-workers=0")
    return run({"test_it.py": SOURCE, "conftest.py": SHORT}, *options, "--dl-report=report.json")


def test_a_loop_that_waits_is_told_why(tuned: Session) -> None:
    assert set(tuned.outcomes.values()) == {"failed"}
    finding = tuned.findings("test_it.py::test_stalls")["stalls"]
    assert finding["message"].startswith(
        "expected a loop that is busy for 1 ms a batch to wait at most 0.05 of its time, got 0.9"
    )
    assert "and the fetch is I/O-bound (" in finding["message"]
    run = tuned.runs("test_it.py::test_stalls")["w0"]
    assert run["making"]["fetch"]["bound"] == "I/O-bound"
    assert run["stall"]["low"] <= run["stall"]["share"] <= run["stall"]["high"]


def test_a_pipeline_is_tuned_once(tuned: Session) -> None:
    assert tuned.report is not None, tuned.text
    found = [p["recommendation"] for p in tuned.report["pipelines"] if "recommendation" in p]
    assert len(found) == 1
    assert [one["configuration"] for one in found[0]["curve"][:2]] == ["w0", "fork-w1"]
    for line in found[0]["lines"]:
        assert f"  {line}" in tuned.section


def test_the_machine_is_told_in_the_header_and_in_the_report(tuned: Session) -> None:
    assert tuned.report is not None, tuned.text
    machine = tuned.report["environment"]["machine"]
    count = machine["cpus_allowed"]
    assert f"dataloader: {machine['os']}" in tuned.text
    assert f"{count} CPU" in tuned.text
