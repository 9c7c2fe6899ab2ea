"""Pipelines: whatever they come from, a test sees the batches of the user's own DataLoader."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, needs_fork

pytestmark = needs_fork

# Each class has its own pipeline, and says in `plain` what it is without the plugin.
SUITE = """
    import pytest
    import torch
    from parts import *
    from torch.utils.data import DataLoader

    from pytest_dataloader.observe.digest import RunningDigest, digest


    def plain(config, *args, **kwargs):
        method = config.start_method
        kwargs |= {"num_workers": config.num_workers, "multiprocessing_context": method}
        return DataLoader(*args, **kwargs)


    def digest_of(batches):
        running = RunningDigest()
        for batch in batches:
            running.add(digest(batch).hex)
        return running.ordered


    class Pipeline:
        batches = 16

        def test_seen(self, dl_config, dl_loader):
            torch.manual_seed(7)
            seen = list(dl_loader)
            torch.manual_seed(7)
            assert str(seen) == str(list(self.plain(dl_config)))
            assert len(seen) == self.batches


    class Observed(Pipeline):
        def test_observed(self, dl_config, dl_run):
            torch.manual_seed(0)
            expected = digest_of(self.plain(dl_config))
            assert (dl_run.outcome, dl_run.epochs[0].digest) == ("ok", expected)
            assert dl_run.epochs[0].batches == self.batches
            assert dl_run.epochs[0].samples == 16


    class TestDataset(Pipeline):
        dataset = Numbers()

        @pytest.fixture
        def dl_dataset(self):
            return self.dataset

        def plain(self, config):
            return plain(config, Numbers())

        def test_same_object(self, dl_loader):
            assert dl_loader.dataset is self.dataset
            assert type(dl_loader) is DataLoader


    class TestMadeDataset(Observed):
        kwargs = {"batch_size": 4, "shuffle": True}
        batches = 4

        @pytest.fixture
        def dl_make_dataset(self):
            return KnowsWorkers

        @pytest.fixture
        def dl_loader_kwargs(self):
            return self.kwargs

        def plain(self, config):
            return plain(config, KnowsWorkers(), **self.kwargs)

        def test_worker_info(self, dl_loader):
            samples = [sample for batch in dl_loader for sample in batch]
            assert {sample.rpartition(" ")[0] for sample in samples} == {"KnowsWorkers True"}


    class TestKwargsByWorkers(Pipeline):
        @property
        def batches(self):
            return self.expected

        @pytest.fixture(autouse=True)
        def expect(self, dl_config):
            self.expected = 2 if dl_config.num_workers else 4

        @pytest.fixture
        def dl_make_dataset(self):
            return Numbers

        @pytest.fixture
        def dl_loader_kwargs(self):
            return make_loader_kwargs

        def plain(self, config):
            return plain(config, Numbers(), **make_loader_kwargs(config.num_workers))


    class TestIterable(Observed):
        @pytest.fixture
        def dl_make_dataset(self):
            return Shard

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_size": None}

        def plain(self, config):
            return plain(config, Shard(), batch_size=None)


    class TestSingleSamples(Pipeline):
        @pytest.fixture
        def dl_dataset(self):
            return Numbers()

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_size": None, "shuffle": True}

        def plain(self, config):
            return plain(config, Numbers(), batch_size=None, shuffle=True)


    class TestOwnSampler(Pipeline):
        batches = 3

        @pytest.fixture
        def dl_dataset(self):
            return Numbers()

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"sampler": Reversed(16), "batch_size": 6}

        def plain(self, config):
            return plain(config, Numbers(), sampler=Reversed(16), batch_size=6)

        def test_sampler(self, dl_loader):
            assert type(dl_loader.sampler) is Reversed
            assert next(iter(dl_loader))[0] == 15


    class TestOwnBatchSampler(Observed):
        batches = 4

        @pytest.fixture
        def dl_make_dataset(self):
            return Fetched

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_sampler": growing_batches()}

        def plain(self, config):
            return plain(config, Fetched(), batch_sampler=growing_batches())

        def test_fetched_by_the_batch(self, dl_loader):
            assert next(iter(dl_loader)).tolist() == [[15 - i, 5] for i in range(5)]


    class TestOwnFunctions(Observed):
        kwargs = {"batch_size": 8, "collate_fn": in_columns, "worker_init_fn": remember}
        batches = 2

        @pytest.fixture
        def dl_make_dataset(self):
            return KnowsInit

        @pytest.fixture
        def dl_loader_kwargs(self):
            return self.kwargs

        def plain(self, config):
            return plain(config, KnowsInit(), **self.kwargs)

        def test_functions(self, dl_config, dl_loader):
            assert dl_loader.collate_fn is in_columns
            assert dl_loader.worker_init_fn is remember
            first = next(iter(dl_loader))
            assert first["column"].tolist()[:2] == ([0, 100] if dl_config.num_workers else [0, 1])


    class TestLoader(Pipeline):
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
        batches = 4

        @pytest.fixture
        def dl_source_loader(self):
            return self.loader

        def plain(self, config):
            return plain(config, Numbers(), batch_size=4, shuffle=True)

        def test_is_left_alone(self, dl_loader):
            assert dl_loader is not self.loader
            assert dl_loader.dataset is self.loader.dataset
            assert self.loader.num_workers == 0
            assert self.loader.collate_fn is DataLoader(Numbers()).collate_fn
            assert self.loader.worker_init_fn is None


    class TestOwnLoader(Observed):
        loader = Own(name="mine")
        batches = 4

        @pytest.fixture
        def dl_source_loader(self):
            return self.loader

        def plain(self, config):
            loader = plain(config, Numbers(), batch_size=4, shuffle=True)
            return (("mine", batch) for batch in loader)

        def test_constructor_is_not_called_again(self, dl_loader):
            assert type(dl_loader) is Own
            assert Own.made == 1


    class TestMadeLoader(Observed):
        batches = 2

        @pytest.fixture
        def dl_source_loader(self):
            return make_loader

        def plain(self, config):
            return plain(config, Numbers(), batch_size=8)
    """

# test names beside those that every class of the suite inherits
MORE_TESTS = {
    "TestDataset": ["test_same_object"],
    "TestMadeDataset": ["test_observed", "test_worker_info"],
    "TestKwargsByWorkers": [],
    "TestIterable": ["test_observed"],
    "TestSingleSamples": [],
    "TestOwnSampler": ["test_sampler"],
    "TestOwnBatchSampler": ["test_observed", "test_fetched_by_the_batch"],
    "TestOwnFunctions": ["test_observed", "test_functions"],
    "TestLoader": ["test_is_left_alone"],
    "TestOwnLoader": ["test_observed", "test_constructor_is_not_called_again"],
    "TestMadeLoader": ["test_observed"],
}


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    return run({"test_them.py": SUITE}, "--dl-start-methods=fork")


@pytest.mark.parametrize("config", ["w0", "fork-w2"])
@pytest.mark.parametrize("source", MORE_TESTS)
def test_batches_are_the_users_own(session: Session, source: str, config: str) -> None:
    names = ["test_seen", *MORE_TESTS[source]]
    tests = {name: session.tests[f"{source} {name}[{config}]"] for name in names}
    words = "\n".join(test.words for test in tests.values())
    assert {name: test.outcome for name, test in tests.items()} == dict.fromkeys(names, "passed"), (
        words
    )


def test_nothing_else_was_run(session: Session) -> None:
    assert len(session.tests) == 2 * sum(1 + len(names) for names in MORE_TESTS.values())
    assert session.status == pytest.ExitCode.OK


SPAWNED = """
    import pytest
    from parts import KnowsWorkers


    @pytest.fixture
    def dl_make_dataset():
        return KnowsWorkers


    @pytest.mark.dl_matrix(start_methods=["spawn"], num_workers=[1])
    def test_spawned(dl_loader, dl_run):
        samples = [sample for batch in dl_loader for sample in batch]
        assert {sample.rpartition(" ")[0] for sample in samples} == {"KnowsWorkers True"}
        assert [b.leaves[0].preview for b in dl_run.epochs[0].batch_facts] == [
            repr(sample) for sample in samples
        ]
    """


def test_a_spawned_worker_has_the_users_dataset(run: Runner) -> None:
    session = run({"test_spawned.py": SPAWNED})
    assert session.outcomes == {"test_spawned[spawn-w1]": "passed"}, session.text


SHARED = """
    from functools import partial

    import pytest
    from parts import Numbers


    @pytest.fixture
    def size():
        return 4


    @pytest.fixture
    def dl_make_dataset(request, size):
        return getattr(request, "param", partial(Numbers, size))


    def test_plain(dl_run):
        assert dl_run.samples == 4


    class TestOverridden:
        @pytest.fixture
        def size(self):
            return 5

        def test_it(self, dl_run):
            assert dl_run.samples == 5


    @pytest.mark.parametrize("dl_make_dataset", [partial(Numbers, 6)], indirect=True)
    def test_first(dl_run):
        assert dl_run.samples == 6


    @pytest.mark.parametrize("dl_make_dataset", [partial(Numbers, 7)], indirect=True)
    def test_second(dl_run):
        assert dl_run.samples == 7


    @pytest.mark.parametrize("size", ["w0-[8]"])
    @pytest.mark.parametrize("dl_make_dataset", [partial(Numbers, 8)], indirect=True)
    def test_odd_ids(dl_run, size):
        assert dl_run.samples == 8
    """


def test_other_pipelines_do_not_share_runs(run: Runner) -> None:
    files = {"test_shared.py": SHARED}
    session = run(files, "--dl-num-workers=0", "--dl-report=report.json")
    assert set(session.outcomes.values()) == {"passed"}, session.text
    assert session.report is not None
    assert [pipeline["id"] for pipeline in session.report["pipelines"]] == [
        "test_shared.py::test_plain",
        "test_shared.py::TestOverridden::test_it",
        "test_shared.py::test_first[dl_make_dataset0]",
        "test_shared.py::test_second[dl_make_dataset0]",
        "test_shared.py::test_odd_ids[dl_make_dataset0-w0-[8]]",
    ]


WRONG = """
    import pytest
    from parts import *


    class TestNone:
        @pytest.mark.dl_picklable
        def test_it(self): ...


    class TestTwo:
        @pytest.fixture
        def dl_dataset(self):
            return Numbers()

        @pytest.fixture
        def dl_source_loader(self):
            return loader

        def test_it(self, dl_run): ...


    class TestKwargsOfLoader:
        @pytest.fixture
        def dl_loader_kwargs(self):
            return {}

        @pytest.fixture
        def dl_source_loader(self):
            return loader

        def test_it(self, dl_run): ...


    class TestLoaderAsDataset:
        @pytest.fixture
        def dl_dataset(self):
            return loader

        def test_it(self, dl_loader): ...


    class TestNoCallable:
        @pytest.fixture
        def dl_make_dataset(self):
            return Numbers()

        def test_it(self, dl_loader): ...


    class TestNoLoader:
        @pytest.fixture
        def dl_source_loader(self):
            return 3

        def test_it(self, dl_run): ...


    class TestKwargsNoDict:
        @pytest.fixture
        def dl_dataset(self):
            return Numbers()

        @pytest.fixture
        def dl_loader_kwargs(self):
            return [4]

        def test_it(self, dl_loader): ...


    class TestSound:
        @pytest.fixture
        def dl_dataset(self):
            return Numbers()

        def test_it(self, dl_loader):
            assert len(list(dl_loader)) == 16
    """


@pytest.fixture(scope="module")
def wrong(run: Runner) -> Session:
    return run({"test_wrong.py": WRONG}, "--dl-num-workers=0")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "TestNone",
            (
                "test_wrong.py::TestNone::test_it[w0]: expected a pipeline from one of the "
                "fixtures "
                "dl_dataset, dl_make_dataset, dl_source_loader; none is defined for this test; "
                "define "
                "one in the test's module or a conftest.py"
            ),
        ),
        (
            "TestTwo",
            (
                "test_wrong.py::TestTwo::test_it[w0]: expected one of the fixtures dl_dataset, "
                "dl_make_dataset, dl_source_loader; got 2: dl_dataset, dl_source_loader; remove "
                "all "
                "but one"
            ),
        ),
        (
            "TestKwargsOfLoader",
            (
                "test_wrong.py::TestKwargsOfLoader::test_it: dl_source_loader brings its own "
                "arguments; remove dl_loader_kwargs"
            ),
        ),
        (
            "TestLoaderAsDataset",
            (
                "test_wrong.py::TestLoaderAsDataset::test_it: expected a Dataset, got a "
                "DataLoader; "
                "give it as dl_source_loader"
            ),
        ),
        (
            "TestNoCallable",
            (
                "test_wrong.py::TestNoCallable::test_it: dl_make_dataset must give a callable that "
                "builds a Dataset; got Numbers"
            ),
        ),
        (
            "TestNoLoader",
            (
                "test_wrong.py::TestNoLoader::test_it: dl_source_loader must give a DataLoader "
                "or a "
                "callable that builds one; got int"
            ),
        ),
        (
            "TestKwargsNoDict",
            (
                "test_wrong.py::TestKwargsNoDict::test_it: the loader's arguments must be a dict "
                "such "
                "as {'batch_size': 4}; got list"
            ),
        ),
    ],
)
def test_a_wrong_pipeline_is_one_clean_error(wrong: Session, source: str, message: str) -> None:
    test = wrong.tests[f"{source} test_it[w0]"]
    assert (test.outcome, test.words) == ("error", message)


def test_a_wrong_pipeline_costs_nothing_else(wrong: Session) -> None:
    assert wrong.tests["TestSound test_it[w0]"].outcome == "passed"
    assert "INTERNALERROR" not in wrong.text
