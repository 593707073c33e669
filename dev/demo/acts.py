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
    Act("act1", "one subscribe() worker", "subscribe", workers=1),
    Act("act2", "two assign() workers on one group", "assign", workers=2),
    Act("act3", "one assign() worker, and an older source that sends 10 % twice", "assign", workers=1,
        again=EVENTS_PER_ROUND // 10),
    Act("act4", "two assign() workers, and a summariser that reads with FINAL", "assign", workers=2, final=True),
)

CONTROL = Act("control", "the control: the same code, one assign() worker", "assign", workers=1)
