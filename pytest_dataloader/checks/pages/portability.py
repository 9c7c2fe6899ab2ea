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
    Code(
        name="listing-order",
        family="portability",
        title="The order of samples is the order of a directory listing",
        why="""
            os.listdir, os.scandir, glob and Path.iterdir give names in an arbitrary order: that of
            the file system, which differs between machines and after a copy. The same index is
            then another sample elsewhere, and a split by index puts training data into the test
            set.
            """,
        mend="""
            Sort the listing, by names relative to its root.
            """,
        before="""
            def find(root):
                return [path.name for path in Path(root).iterdir()]
            """,
        after="""
            def find(root):
                return sorted(path.name for path in Path(root).iterdir())
            """,
    ),
    Code(
        name="hash-order",
        family="portability",
        title="Content depends on Python's hash seed",
        why="""
            hash() of a string or bytes is salted with a number that each interpreter draws at its
            start, and the order of a set follows the hashes. Two runs, and a spawned worker and
            its parent, number the same labels differently. Forked workers inherit the seed, which
            hides it.
            """,
        mend="""
            Sort a set before you enumerate it. For a hash that stays use hashlib or zlib.crc32.
            PYTHONHASHSEED only hides the fault.
            """,
        before="""
            def number(labels):
                return {label: n for n, label in enumerate(set(labels))}
            """,
        after="""
            def number(labels):
                return {label: n for n, label in enumerate(sorted(set(labels)))}
            """,
    ),
    Code(
        name="default-encoding",
        family="portability",
        title="Text is read with the platform's default encoding",
        why="""
            open() without an encoding uses the locale's: UTF-8 on most Linux and macOS systems, a
            code page such as cp1252 on Windows, ASCII in some containers. The same file then gives
            other characters, or an error. Python 3.15 changes the default to UTF-8; until then
            python -X warn_default_encoding shows the places.
            """,
        mend="""
            Pass encoding="utf-8" wherever text is read or written.
            """,
        before="""
            def read(path):
                with open(path) as file:
                    return file.read()
            """,
        after="""
            def read(path):
                with open(path, encoding="utf-8") as file:
                    return file.read()
            """,
    ),
)
