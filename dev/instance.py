"""One data folder (`--data DIR`) and what runs in it: ports, processes, logs, and the JSON that clients read.

Everything is in files under DIR, so that `dev/up` and `dev/down` may be any two runs, and so that two folders
never meet. A process is known by its id *and* its start time, so that a recycled id is never killed.
"""

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

# Below the kernel's ephemeral range, so that no outgoing connection takes a port between two starts.
PORTS = range(20000, 32000)
STOP_LIMIT = 20  # seconds between SIGTERM and SIGKILL


class Failure(Exception):
    """Something that the user must read; no traceback is wanted."""


@contextlib.contextmanager
def file_lock(path):
    """Holds an exclusive lock, across processes; waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_time(pid):
    """When the process began, in clock ticks since boot; None when it is no more (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def free_port(taken):
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in taken:
            return port


def owns_port(pid, port):
    """Whether that very process listens there: another program's answer must not count as ours."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(descriptor.path) in inodes:
                    return True
    return False


class Instance:
    """The data folder."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()

    def lock(self):
        return file_lock(self.folder / ".lock")

    def part_folder(self, name):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name):
        return self.folder / f"{name}.log"

    # Ports are kept when a server stops: a client under test must find it again at the same address.

    def ports(self):
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.folder / "ports.json").read_text())
        return {}

    def allot(self, names, anew=False):
        """A port for each of these names, remembered; `anew` picks others."""
        with file_lock(self.folder / ".ports.lock"):
            ports = self.ports()
            for name in names:
                if anew or name not in ports:
                    ports[name] = free_port(ports.values())
            write(self.folder / "ports.json", json.dumps(ports, indent=1, sort_keys=True))
        return {name: ports[name] for name in names}

    # Processes.

    def start(self, name, command, environment=None, folder=None):
        """Starts a server in a session of its own; its output goes to the log."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=folder or self.folder, env={**os.environ, **(environment or {})}, start_new_session=True,
            )
        write(self.folder / f"{name}.pid", f"{process.pid} {start_time(process.pid)}\n")
        return process.pid

    def pid(self, name):
        """The id of the part's process, or None when it does not run."""
        try:
            pid, started = (self.folder / f"{name}.pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if start_time(pid) == started else None

    def started(self):
        return sorted(path.stem for path in self.folder.glob("*.pid"))

    def stop(self, names, kill=False):
        """Ends these processes, all at once: brokers of one cluster wait for each other."""
        pids = {name: pid for name in names if (pid := self.pid(name))}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a paused process could not end
        deadline = time.monotonic() + STOP_LIMIT
        while time.monotonic() < deadline and any(self.pid(name) for name in pids):
            time.sleep(0.05)
        for name in pids:
            if pid := self.pid(name):
                os.kill(pid, signal.SIGKILL)
                while self.pid(name):
                    time.sleep(0.05)
        for name in names:
            (self.folder / f"{name}.pid").unlink(missing_ok=True)
        self.forget(names)
        return sorted(pids)

    # What clients read: NAME.json, as long as the part runs.

    def save(self, name, answer):
        write(self.folder / f"{name}.json", json.dumps(answer, indent=1) + "\n")

    def saved(self, name):
        return (self.folder / f"{name}.json").exists()

    def forget(self, names):
        for name in names:
            (self.folder / f"{name}.json").unlink(missing_ok=True)


def write(path, text):
    """Replaces the file in one step, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(text)
    temporary.replace(path)
