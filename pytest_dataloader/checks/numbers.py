"""Numbers as people read them."""

from __future__ import annotations

import math


def readable(value: float) -> str:
    """Four digits that count, with thousands separators and without powers of ten: 22,790."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    rounded = round(value, 3 - size)
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    text = f"{rounded:.{max(0, 3 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(seconds: float) -> str:
    """Seconds in milliseconds, with two digits that count: 0.1 ms, 83 ms."""
    value = seconds * 1000
    if value >= 10:
        return f"{value:,.0f} ms"
    return f"{value:.2g} ms" if value >= 0.01 else "under 0.01 ms"
