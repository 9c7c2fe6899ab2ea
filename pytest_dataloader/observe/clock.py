"""The clock: the one place that reads it, so that tests replace it once."""

from __future__ import annotations

import time

#: Seconds on a clock that all processes of a machine share.
now = time.monotonic
