"""Pages of the portability family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="will-break-on-forkserver",
        family="portability",
        title="The pipeline works only under fork, which is the default no more",
        why="""
            Python 3.14 made forkserver the default start method on Linux, in place of fork. What
            fork let pass fails there as it has failed on Windows and macOS: parts that cannot be
            pickled, globals set at run time, scripts without a main guard.
            """,
        mend="""
            Mend the findings under spawn. multiprocessing_context="fork" keeps the old way for a
            while, where no thread or device forbids it.
            """,
        before="""
            def make_loader():
                return DataLoader(range(8), num_workers=2, collate_fn=lambda rows: rows)
            """,
        after="""
            def keep(rows):
                return rows


            def make_loader():
                return DataLoader(range(8), num_workers=2, collate_fn=keep)
            """,
    ),
)
