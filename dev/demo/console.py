"""What the demo prints: lines with the elapsed time, and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

BEGAN = time.monotonic()


def say(text: str = "") -> None:
    """One line of progress."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def elapsed() -> float:
    """Seconds since the demo began."""
    return time.monotonic() - BEGAN


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with columns as wide as their longest cell."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, ["-" * width for width in widths], *rows):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    print(flush=True)
