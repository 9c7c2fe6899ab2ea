"""Verbs on saved reports: ``python -m pytest_dataloader compare | merge | explain``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_dataloader.checks.catalogue import UnknownCode, explain
from pytest_dataloader.report import compare
from pytest_dataloader.report.reading import ReportError, read
from pytest_dataloader.report.schema import merged
from pytest_dataloader.report.terminal import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit code 0: nothing is worse; 1: something is; 2: a usage error."""
    chosen = _parser().parse_args(arguments)
    try:
        status: int = chosen.verb(chosen)
    except (ReportError, UnknownCode, OSError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pytest_dataloader", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    one = verbs.add_parser("compare", help="say what NEW has worse than OLD, or otherwise")
    one.add_argument("old", type=Path, metavar="OLD")
    one.add_argument("new", type=Path, metavar="NEW")
    one.set_defaults(verb=_compare)
    one = verbs.add_parser("merge", help="write one report of those of several platforms")
    one.add_argument("out", type=Path, metavar="OUT")
    one.add_argument("reports", type=Path, nargs="+", metavar="REPORT")
    one.set_defaults(verb=_merge)
    one = verbs.add_parser("explain", help="print what a code means and how to mend it")
    one.add_argument("code", metavar="CODE")
    one.set_defaults(verb=_explain)
    return parser


def _say(text: str) -> None:
    print(printable(text))


def _compare(chosen: Any) -> int:
    old, new = read(chosen.old), read(chosen.new)
    for line in compare.lines(old, new, str(chosen.old)):
        _say(line)
    return int(any(one.worse for one in compare.compare(old, new)))


def _merge(chosen: Any) -> int:
    report = merged([read(path) for path in chosen.reports])
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _say(f"{chosen.out}: {len(report['pipelines'])} pipelines of {len(chosen.reports)} reports")
    return 0


def _explain(chosen: Any) -> int:
    print(explain(chosen.code))
    return 0


if __name__ == "__main__":
    sys.exit(main())
