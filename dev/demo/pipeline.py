"""One pipeline: a producer, its import workers and its summariser, played round by round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demo.acts import Act, Round
from demo.actor import Actor
from demo.summariser import Summariser
from demo.warehouse import Warehouse
from instance import Failure


@dataclass(frozen=True)
class Engines:
    """Where the engines are, and the Python that has a Kafka client."""

    warehouse: Warehouse
    bootstrap: str
    kind: str  # kafka or tansu
    suffix: str  # of groups and topics, on a Kafka that is not ours alone
    python: str
    logs: Path

    def group(self, act: Act) -> str:
        return f"audit-{act.name}{self.suffix}"

    def topic(self, act: Act) -> str:
        return f"playlog-{act.name}{self.suffix}"


@dataclass
class Sent:
    """What the producer sent: all that the expectations are reckoned from."""

    events: int = 0
    messages: int = 0
    first_round: int = 0  # messages of the first round


class Pipeline:
    """The running parts of an act."""

    def __init__(self, engines: Engines, act: Act, workers: int) -> None:
        self.engines = engines
        self.act = act
        self.sent = Sent()
        self.actors: list[Actor] = []
        try:
            self.producer = self.start_producer()
            self.workers = [self.start_worker(number) for number in range(1, workers + 1)]
            for worker in self.workers:
                worker.answer()
        except BaseException:
            self.end()
            raise
        self.summariser = Summariser(engines.warehouse, act.database, act.final)

    def start_producer(self) -> Actor:
        where = {"bootstrap": self.engines.bootstrap, "topic": self.engines.topic(self.act)}
        producer = self.start("producer", "demo.producer", where)
        producer.answer()  # the topic must be there before the workers are
        return producer

    def start_worker(self, number: int) -> Actor:
        engines, act = self.engines, self.act
        return self.start(f"worker-{number}", "demo.worker", {
            "bootstrap": engines.bootstrap, "topic": engines.topic(act), "group": engines.group(act), "mode": act.mode,
            "clickhouse": engines.warehouse.url, "user": engines.warehouse.user, "database": act.database,
        })

    def start(self, role: str, module: str, arguments: dict[str, str]) -> Actor:
        name = f"{self.act.name}-{role}"
        secret = {"CLICKHOUSE_PASSWORD": self.engines.warehouse.password}
        actor = Actor(name, self.engines.python, module, arguments, self.engines.logs / f"{name}.log", secret)
        self.actors.append(actor)
        return actor

    def play(self, step: Round) -> int:
        """Sends a round and imports it; the rows that were written.

        All workers read first, from the same committed offsets, and only then does each insert and commit, one
        after the other: what two workers do that cron starts in the same second.
        """
        messages = self.producer.ask("send", new=step.new, again=step.again)["messages"]
        self.sent.first_round = self.sent.first_round or messages
        self.sent.events += step.new
        self.sent.messages += messages
        for worker in self.workers:
            worker.tell("read")
        for worker in self.workers:
            read = worker.answer()["messages"]
            if read != messages:
                raise Failure(f"{worker.name} read {read} messages where {messages} were sent")
        rows = sum(worker.ask("write")["rows"] for worker in self.workers)
        self.summariser.run()
        return rows

    def end(self) -> None:
        """Ends its processes."""
        for actor in self.actors:
            actor.dismiss()
        for actor in self.actors:
            actor.end()
        self.actors = []
