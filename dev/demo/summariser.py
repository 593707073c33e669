"""The summariser: counts the raw rows that came since its last run, by screen, campaign and day, into the summary.

The summary's engine only sums. What goes in doubled stays doubled, whatever merges do to the raw table later.
"""

from __future__ import annotations

import time

from demo.warehouse import Warehouse
from instance import Failure

LIMIT = 10  # seconds for the server's clock to move on by one

QUERY = """INSERT INTO {database}.playlog_summary
SELECT device_id, campaign_id, toDate(ts) AS day, count() AS total
FROM {database}.playlog {final}
WHERE inserted_at >= toDateTime({begin}) AND inserted_at < toDateTime({end})
GROUP BY device_id, campaign_id, day"""


class Summariser:
    """Remembers up to when it has counted.

    With `final` it reads as if merges had come. That is right as long as the copies of an event come between two
    runs; a copy that comes after the run that counted the first one is counted again, FINAL or not.
    """

    def __init__(self, warehouse: Warehouse, database: str, final: bool) -> None:
        self.warehouse = warehouse
        self.database = database
        self.final = "FINAL" if final else ""
        self.counted_to = warehouse.now()

    def run(self) -> None:
        """Counts up to the server's present second, excluded: more rows may still come in it."""
        self.count_to(self.warehouse.now())

    def finish(self) -> None:
        """Counts all that is there now."""
        last = self.warehouse.now()
        deadline = time.monotonic() + LIMIT
        while (now := self.warehouse.now()) <= last:
            if time.monotonic() > deadline:
                raise Failure(f"ClickHouse's clock stands still at {now}")
            time.sleep(0.05)
        self.count_to(now)

    def count_to(self, end: int) -> None:
        if end > self.counted_to:
            self.warehouse.query(QUERY.format(database=self.database, final=self.final, begin=self.counted_to, end=end))
            self.counted_to = end
