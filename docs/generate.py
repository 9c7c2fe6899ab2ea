"""Writes what the docs say of codes from the catalogue: docs/codes.md and the README's table.

python docs/generate.py          # write
python docs/generate.py --check  # exit 1 if something would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_dataloader.checks.catalogue import CODES, FAMILIES

TOP = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- codes -->", "<!-- end of codes -->"


def table() -> str:
    """The README's table: a row a family, each code linked to its page."""
    rows = ["| family | codes |", "| --- | --- |"]
    for family in FAMILIES:
        links = [f"[`{c.name}`](docs/codes.md#{c.name})" for c in CODES if c.family == family]
        rows.append(f"| {family} | {' · '.join(links)} |")
    return "\n".join(rows)


def pages() -> str:
    """All pages, in the order of the catalogue."""
    parts = [
        "# Codes",
        (
            "Each finding has one of these codes. `pytest --dl-explain=CODE` prints the same page. "
            "The examples leave out their imports."
        ),
    ]
    for family in FAMILIES:
        parts.append(f"## {family}")
        for code in (c for c in CODES if c.family == family):
            parts += [
                f"### {code.name}",
                f"{code.title}.",
                f"**Why it happens.** {code.why}",
                f"**How to mend it.** {code.mend}",
                f"Before:\n\n```python\n{code.before}```",
                f"After:\n\n```python\n{code.after}```",
            ]
    return "\n\n".join(parts) + "\n"


def readme(text: str) -> str:
    """The README with the table in its place."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


def main(check: bool) -> int:
    """Write both files, or say which of them are out of date."""
    texts = {
        TOP / "docs" / "codes.md": pages(),
        TOP / "README.md": readme((TOP / "README.md").read_text(encoding="utf-8")),
    }
    stale = [
        path
        for path, text in texts.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            sys.stderr.write(f"out of date: {path.relative_to(TOP)}; run python docs/generate.py\n")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
