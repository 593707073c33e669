"""Reads the exporter's /metrics, and waits until its figures are new enough."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable

from instance import Failure

FRESH_LIMIT = 60  # seconds
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Check = tuple[str, str]  # source and name, such as ("logs", "table:audit.playlog")


class Page:
    """One answer of /metrics."""

    def __init__(self, text: str) -> None:
        self.series: dict[tuple[str, frozenset], float] = {}
        for line in text.splitlines():
            found = LINE.match(line)
            if found:
                name, labels, value = found.groups()
                pairs = ((key, re.sub(r"\\.", lambda m: ESCAPES[m[0]], text)) for key, text in LABEL.findall(labels or ""))
                self.series[name, frozenset(pairs)] = float(value)

    def value(self, metric: str, labels: dict[str, str]) -> float | None:
        """The value of the series with exactly these labels; None where there is none."""
        return self.series.get((metric, frozenset(labels.items())))

    def poll_began(self, check: Check) -> float:
        """When the last poll of a check began, in Unix seconds, if it was good; else 0."""
        labels = dict(zip(("source", "check"), check))
        ended = self.value("dup_check_last_success_timestamp_seconds", labels)
        took = self.value("dup_check_duration_seconds", labels)
        if self.value("dup_check_up", labels) != 1 or ended is None or took is None:
            return 0
        return ended - took

    def failures(self, check: Check) -> str:
        """The reasons for which polls of a check failed, for people."""
        reasons = [dict(labels).get("reason", "") for (name, labels), count in self.series.items()
                   if name == "dup_check_failures_total" and count and {("source", check[0]), ("check", check[1])} <= labels]
        return ", ".join(sorted(reasons)) or "none"


class Exposition:
    """The page at a URL."""

    def __init__(self, url: str, alive: Callable[[], None]) -> None:
        self.url = url
        self.alive = alive  # raises when the exporter has ended

    def read(self) -> Page:
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                return Page(answer.read().decode())
        except OSError as error:
            self.alive()
            raise Failure(f"{self.url}/metrics did not answer: {error}") from None

    def read_fresh(self, checks: list[Check], since: float) -> Page:
        """A page on which all these checks show polls that began at `since` or later."""
        deadline = time.monotonic() + FRESH_LIMIT
        while True:
            page = self.read()
            old = [check for check in checks if page.poll_began(check) < since]
            if not old:
                # Times and figures of one page need not be of the same instant; figures read now are newer.
                return self.read()
            if time.monotonic() > deadline:
                told = "; ".join(f"{check[1]} of {check[0]} (failures so far: {page.failures(check)})" for check in old)
                raise Failure(f"no good poll within {FRESH_LIMIT} s by {told}")
            time.sleep(0.1)
