"""What is played: the acts, and the control beside them."""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_PER_ROUND = 400
ROUNDS = 4


@dataclass(frozen=True)
class Round:
    """What the producer sends at a time: new events, and some of the round before once more."""

    new: int
    again: int = 0


@dataclass(frozen=True)
class Act:
    """One pipeline, as it is set up."""

    name: str  # act1, act2, … or control
    title: str
    lesson: str  # what the figures say
    mode: str  # subscribe or assign
    workers: int
    again: int = 0  # of the events of each round, so many come once more in the next
    final: bool = False  # whether the summariser reads with FINAL

    @property
    def database(self) -> str:
        return f"audit_{self.name}"

    @property
    def members(self) -> int:
        """Members that the group has: assign() never joins."""
        return self.workers if self.mode == "subscribe" else 0

    @property
    def rounds(self) -> list[Round]:
        """Copies come a round later, so that they never share a batch with the first one."""
        rounds = [Round(EVENTS_PER_ROUND, self.again if number else 0) for number in range(ROUNDS)]
        return rounds + ([Round(0, self.again)] if self.again else [])


ACTS = (
    Act("act1", "one subscribe() worker",
        "The worker is a member of its group, and each event is stored and counted once.",
        "subscribe", workers=1),
    Act("act2", "two assign() workers on one group",
        "Offsets move in a group without members: nobody divides the partitions, and each message is written twice. "
        "The summary counted physical rows (1 per row in part_log), so merges heal the raw table and not the summary.",
        "assign", workers=2),
    Act("act3", "one assign() worker, and an older source that sends 10 % twice",
        "The second worker is gone, and the factor comes back to 1.10, not to 1.00: another source is still there.",
        "assign", workers=1, again=EVENTS_PER_ROUND // 10),
    Act("act4", "two assign() workers, and a summariser that reads with FINAL",
        "The raw table is as wrong as in act 2, but the summary counted keys: half of the rows in part_log.",
        "assign", workers=2, final=True),
)

CONTROL = Act("control", "the same code with one assign() worker, beside every act",
              "A group without members is a risk; with one worker it does no harm.", "assign", workers=1)
