"""The reference workload: how long this machine takes, now, for work that is always the same."""

from __future__ import annotations

import time
import zlib

_DATA = bytes(range(256)) * 256
_ROUNDS = 400


def reference_s() -> float:
    """Seconds of wall time that a fixed piece of work takes: about ten milliseconds.

    It is half interpreted Python and half C, as the making of a batch is. Other work on the same
    CPUs and a lower clock make it longer by the factor by which they slow a loader that computes.
    """
    began = time.perf_counter()
    found = 0
    for number in range(_ROUNDS):
        found = zlib.crc32(_DATA, found + number) & 0x7FFFFFFF
        found += sum(item * item for item in range(500)) & 0xFF
    return time.perf_counter() - began
