"""What the play stands on: tools, the exporter's binary, ClickHouse and Kafka. Sets it up and clears it away."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from demo.actor import DEV
from demo.console import say
from demo.pipeline import Engines
from demo.warehouse import Warehouse
from instance import Failure, Instance

ROOT = DEV.parent
MARK = ".demo"  # a folder with this file in it is ours to wipe
INTERRUPT_LIMIT = 15  # seconds for a program to end after Ctrl-C
MIDNIGHT_MARGIN = 600  # seconds; longer than the play takes


def run(*command: object, answer: bool = False) -> str:
    """Runs a program to its end, and ends it when we are interrupted. Its messages go to the terminal."""
    output = subprocess.PIPE if answer else None
    child = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, text=True)
    try:
        text, _ = child.communicate()
    except BaseException:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(INTERRUPT_LIMIT)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    if child.returncode:
        raise Failure(f"{' '.join(map(str, command))} failed ({child.returncode})")
    return text or ""


class Stage:
    """The data folder of the demo and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.box = Instance(folder)
        self.folder = self.box.folder

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps a second demo out of the folder."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_name(f"{self.folder.name}.lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"a demo is being played in {self.folder} already") from None
            yield

    def clear(self) -> None:
        """Ends what an earlier demo left up, and wipes its data."""
        if self.folder.exists() and any(self.folder.iterdir()):
            if not (self.folder / MARK).exists():
                raise Failure(f"{self.folder} holds something that is not of the demo: name another folder with --data")
            say(f"clearing {self.folder} of an earlier demo")
            self.stop()
            for path in self.folder.iterdir():  # the mark stays, in case we are interrupted
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != MARK:
                    path.unlink()
        self.folder.mkdir(exist_ok=True)
        (self.folder / MARK).touch()

    def install(self) -> None:
        """Puts in what is missing. Kafka comes with `dev/up`, which knows what to do where it can't be had."""
        say("installing what is missing (each thing is named; the first time takes minutes)")
        run(DEV / "install", "build", "clickhouse", "clients")

    def build(self) -> Path:
        """The release binary."""
        given = os.environ.get("DUP_EXPORTER")
        if given:
            return Path(given).resolve()
        if not shutil.which("cargo"):
            raise Failure("cargo is missing: install a Rust toolchain (https://rustup.rs)")
        say("building the exporter (cargo build --release; the first time takes minutes)")
        run("cargo", "build", "--release")
        metadata = run("cargo", "metadata", "--format-version", "1", "--no-deps", answer=True)
        return Path(json.loads(metadata)["target_directory"]) / "release" / "dup_exporter"

    def start_engines(self) -> Engines:
        """ClickHouse and Kafka, ready to be used."""
        say("starting ClickHouse and Kafka")
        parts = json.loads(run(DEV / "up", "--data", self.folder, "clickhouse", "kafka", "clients", answer=True))
        clickhouse, kafka = parts["clickhouse"], parts["kafka"]
        say(f"ClickHouse {clickhouse['version']} at {clickhouse['url']}, "
            f"{kafka['kind']} {kafka.get('version', '(yours)')} at {kafka['bootstrap']}")
        if kafka["kind"] != "kafka" and os.environ.get("DUP_REQUIRE_KAFKA") == "1":
            raise Failure(f"DUP_REQUIRE_KAFKA is set, and the broker is {kafka['kind']}")
        ours = "pid" in kafka
        return Engines(
            warehouse=Warehouse(clickhouse["url"], clickhouse["user"], clickhouse["password"]),
            bootstrap=kafka["bootstrap"], kind=kafka["kind"], suffix="" if ours else f"-{int(time.time())}",
            python=parts["clients"]["python"], logs=self.folder,
        )

    def stop(self) -> None:
        """Ends all that runs in the folder."""
        run(DEV / "down", "--data", self.folder)


def wait_past_midnight(warehouse: Warehouse) -> None:
    """The summary is judged by whole days of the server, so a play must lie within one."""
    left = warehouse.seconds_to_midnight()
    if left > MIDNIGHT_MARGIN:
        return
    deadline = time.monotonic() + MIDNIGHT_MARGIN + 60
    while left <= MIDNIGHT_MARGIN:
        say(f"the server's day ends in {left} s, and the demo must lie within one day: waiting")
        if time.monotonic() > deadline:
            raise Failure("the server's day does not end")
        time.sleep(min(left + 1, 30))
        left = warehouse.seconds_to_midnight()
