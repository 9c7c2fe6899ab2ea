"""The matrix: which configurations a test is run under, and what their ids are."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, needs_fork

pytestmark = needs_fork

IDS = """
    import pytest

    FORK = {"start_methods": ["fork"], "num_workers": [2]}


    @pytest.fixture
    def dl_dataset():
        return [0, 1]


    def test_session(dl_config): ...


    @pytest.mark.dl_matrix(num_workers=0)
    def test_alone(): ...


    @pytest.mark.dl_matrix(start_methods="all", num_workers=[3])
    def test_all(dl_config): ...


    @pytest.mark.dl_matrix(**FORK, persistent_workers=[True, False])
    def test_persistent(): ...


    @pytest.mark.dl_matrix(**FORK, prefetch_factor=[2, 4])
    def test_prefetch(): ...


    @pytest.mark.dl_matrix(start_methods="fork", num_workers=[0, 2], pin_memory=[False])
    def test_pinned(): ...


    @pytest.mark.dl_matrix(start_methods=["spawn"])
    class TestClass:
        @pytest.mark.parametrize("value", ["a", "b"])
        def test_both(self, value): ...

        @pytest.mark.dl_matrix(start_methods=["fork"], num_workers=[1])
        def test_closest_mark_wins(self): ...


    def test_none_of_ours(): ...
    """


@pytest.fixture(scope="module")
def collected(run: Runner) -> Session:
    return run({"test_ids.py": IDS}, "--collect-only", "-q")


def ids(session: Session, name: str) -> list[str]:
    lines = session.text.splitlines()
    return [line.rpartition("::")[2].removeprefix(name) for line in lines if f"::{name}" in line]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_session", ["[w0]", "[fork-w2]", "[spawn-w2]"]),
        ("test_alone", ["[w0]"]),
        ("test_all", ["[fork-w3]", "[spawn-w3]", "[forkserver-w3]"]),
        ("test_persistent", ["[fork-w2-persistent]", "[fork-w2-restarted]"]),
        ("test_prefetch", ["[fork-w2-prefetch2]", "[fork-w2-prefetch4]"]),
        ("test_pinned", ["[w0-unpinned]", "[fork-w2-unpinned]"]),
        ("test_both", ["[w0-a]", "[w0-b]", "[spawn-w2-a]", "[spawn-w2-b]"]),
        ("test_closest_mark_wins", ["[fork-w1]"]),
        ("test_none_of_ours", [""]),
    ],
)
def test_ids(collected: Session, name: str, expected: list[str]) -> None:
    assert sorted(ids(collected, name)) == sorted(expected)


def test_options_choose_the_matrix(run: Runner) -> None:
    session = run(
        {"test_ids.py": IDS},
        "--collect-only",
        "-q",
        "-k=test_session",
        "--dl-num-workers=1,0,3",
        ini="dl_start_methods = forkserver\ndl_num_workers = 7",
    )
    assert ids(session, "test_session") == ["[forkserver-w1]", "[w0]", "[forkserver-w3]"]


def test_every_configuration_of_a_sound_pipeline_passes(sound: Session) -> None:
    ran = {
        f"{name}[{config}]"
        for name in ("test_config", "test_run", "test_conforms")
        for config in ("w0", "fork-w2", "spawn-w2")
    }
    ran |= {f"test_axes[{axes}]" for axes in ("w0", *AXES)}
    assert {name for name, outcome in sound.outcomes.items() if outcome == "passed"} == {
        "test_none_of_ours",
        *ran,
    }


AXES = ("fork-w1-persistent-prefetch3", "fork-w1-restarted-prefetch3")


def test_a_persistent_and_a_restarted_pool_are_two_rows(sound: Session) -> None:
    rows = [line.split()[0] for line in sound.section[1:7] if line]
    assert rows == ["w0", *AXES, "fork-w2", "spawn-w2"]


def test_the_axes_are_in_the_report(sound: Session) -> None:
    runs = sound.pipeline("test_sound.py::test_axes")["runs"]
    assert {
        (r["start_method"], r["num_workers"], r.get("persistent_workers"), r.get("prefetch_factor"))
        for r in runs
    } == {(None, 0, None, None), ("fork", 1, True, 3), ("fork", 1, False, 3)}
