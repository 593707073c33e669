"""How the demo drives a program of its own: a line in, a line of JSON out.

`serve` is the side of the program, `Actor` the side of the one who drives it. A program ends when its input
ends, so that none outlives the demo.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from instance import Failure

DEV = Path(__file__).resolve().parents[1]
ANSWER_LIMIT = 30  # seconds
END_LIMIT = 5
LOG_LINES = 15

Handler = Callable[[dict], dict]


def serve(handlers: dict[str, Handler]) -> None:
    """Answers `{"ready": true}`, and then each line `{"do": NAME, …}` with what the handler of that name returns."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(handlers[order.pop("do")](order)), flush=True)


class Actor:
    """A running program. Its errors go to a log file, whose end is shown when it fails."""

    def __init__(self, name: str, python: str, module: str, arguments: dict[str, str], log: Path,
                 environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        command = [python, "-m", module]
        for option, value in arguments.items():
            command += [f"--{option}", value]
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True,
                env={**os.environ, **(environment or {}), "PYTHONPATH": str(DEV), "PYTHONDONTWRITEBYTECODE": "1"},
            )
        assert self.process.stdin and self.process.stdout
        self.orders = self.process.stdin
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()
        self._asked = "start"

    def _listen(self, output: Iterable[str]) -> None:
        for line in output:
            self.answers.put(line)
        self.answers.put(None)  # it has ended

    def tell(self, order: str, **details: object) -> None:
        """Gives an order; `answer` waits until it is done."""
        self._asked = order
        try:
            self.orders.write(json.dumps({"do": order, **details}) + "\n")
            self.orders.flush()
        except OSError:
            raise self._failure("has ended") from None

    def answer(self) -> dict:
        """The answer to the last order (at first: that the program is ready)."""
        try:
            line = self.answers.get(timeout=ANSWER_LIMIT)
        except queue.Empty:
            raise self._failure(f"did not answer within {ANSWER_LIMIT} s") from None
        if line is None:
            raise self._failure("has ended")
        return json.loads(line)

    def ask(self, order: str, **details: object) -> dict:
        """Gives an order and waits for the answer."""
        self.tell(order, **details)
        return self.answer()

    def _failure(self, what: str) -> Failure:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return Failure(f"{self.name} {what} (asked to {self._asked}); the end of {self.log}:\n{tail}")

    def dismiss(self) -> None:
        """Ends the input of the program, which then ends by itself."""
        with contextlib.suppress(OSError):  # it had ended
            self.orders.close()

    def end(self) -> None:
        """Ends the program: kindly, then less so."""
        self.dismiss()
        for stop in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(END_LIMIT)
                return
            except subprocess.TimeoutExpired:
                stop()
        self.process.wait()
