"""What dev/up, dev/down and dev/install do, for any part; the parts themselves are listed in `known()`.

A part is one server (class Server), several that belong together (class Group), or nothing that runs. The modules
clickhouse, kafka_broker and small_servers say what each needs, how it is configured and how it proves that it is ready.
"""

import json
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from instance import Failure, owns_port
from tools import say

LOG_LINES = 30
ANSWER_LIMIT = 60  # seconds that a running server has to answer: it may be busy with a long query


class Part:
    """What can be named on a command line."""

    def __init__(self, name):
        self.name = name

    def replacement(self):
        """The part that stands in for this one here and now; itself, as a rule."""
        return self

    def servers(self):
        """Its processes."""
        return []

    def install(self):
        """Puts in what it needs; quick when all is there."""

    def describe(self, box):
        """What a client needs to know."""
        raise NotImplementedError


class Server(Part):
    """One process. Subclasses override what differs."""

    limit = 90  # seconds until it must answer
    port_names = ("http",)
    in_use = ("in use",)  # how its log says that a port was taken

    def servers(self):
        return [self]

    def prepare(self, box, ports):
        """Writes the configuration and makes the folders; before each start."""

    def command(self, box, ports):
        """(command, environment)"""
        raise NotImplementedError

    def check(self, box, ports):
        """Asks it a real question; raises as long as the answer is not good."""
        raise NotImplementedError

    def ports(self, box, anew=False):
        """Its ports by their short names, allotted at the first call."""
        names = {short: f"{self.name}.{short}" for short in self.port_names}
        allotted = box.allot(names.values(), anew)
        return {short: allotted[name] for short, name in names.items()}


class Group(Part):
    """Several servers under one name, each of which can be named alone, too."""

    def __init__(self, name, members):
        super().__init__(name)
        self.members = members

    def servers(self):
        return self.members

    def install(self):
        self.members[0].install()


def known():
    """Every part, by its name."""
    import clickhouse  # here, since these modules import this one
    import kafka_broker
    import small_servers

    return {**clickhouse.parts(), **kafka_broker.parts(), **small_servers.parts()}


def chosen(names):
    parts = known()
    unknown = [name for name in names if name not in parts]
    if unknown:
        raise Failure(f"no such part: {', '.join(unknown)}; there are: {', '.join(sorted(parts))}")
    return [parts[name] for name in dict.fromkeys(names)]


def install(names):
    for part in chosen(names):
        part.install()


def up(box, names):
    """Starts what does not run yet; answers {name: what a client needs}. Either all comes up or nothing new stays."""
    parts = [part.replacement() for part in chosen(names)]
    for part in parts:
        part.install()
    servers = list({server.name: server for part in parts for server in part.servers()}.values())
    with box.lock():
        missing = [server for server in servers if not answers(server, box)]
        try:
            start_all(box, missing)
        except BaseException:
            box.stop([server.name for server in missing], kill=True)
            raise
        answer = {part.name: part.describe(box) for part in parts}
        for name, description in answer.items():
            box.save(name, description)
        refresh_groups(box)
    return answer


def refresh_groups(box):
    """The file of a group names the processes of its members, each of which may have been stopped or started alone."""
    for part in known().values():
        if isinstance(part, Group) and box.saved(part.name):
            box.save(part.name, part.describe(box))


def answers(server, box):
    """Whether it runs and answers; one that runs without answering is ended."""
    if not box.pid(server.name):
        return False
    try:
        wait_ready(server, box, server.ports(box), ANSWER_LIMIT)
        return True
    except Failure:
        say(f"{server.name} runs but does not answer: starting it anew")
        box.stop([server.name])
        return False


def start_all(box, servers):
    """Starts them side by side, since the brokers of a cluster wait for each other."""
    if not servers:
        return
    for server in servers:
        server.ports(box)  # all of them first: the configuration of one may name another
    with ThreadPoolExecutor(len(servers)) as threads:
        futures = [threads.submit(bring_up, server, box) for server in servers]
    errors = [error for future in futures if (error := future.exception())]
    for error in errors:
        if not isinstance(error, Failure):
            traceback.print_exception(error)
    if errors:
        raise Failure("\n\n".join(str(error) for error in errors))


def bring_up(server, box):
    """Starts one; with other ports when a program took one of them before its first start."""
    first = not box.part_folder(server.name).joinpath("started").exists()
    for attempt in range(3 if first else 1):
        ports = server.ports(box, anew=attempt > 0)
        began = time.monotonic()
        server.prepare(box, ports)
        size_before = box.log(server.name).stat().st_size if box.log(server.name).exists() else 0
        box.start(server.name, *server.command(box, ports))
        try:
            wait_ready(server, box, ports, server.limit)
        except Failure as failure:
            box.stop([server.name])
            log = new_log(server, box, size_before)
            if attempt < 2 and first and any(words in log for words in server.in_use):
                say(f"{server.name}: a port was taken, trying others")
                continue
            tail = "\n".join(log.splitlines()[-LOG_LINES:])
            raise Failure(f"{failure}; the last lines of {box.log(server.name)}:\n{tail}") from None
        box.part_folder(server.name).joinpath("started").touch()
        say(f"{server.name} up in {time.monotonic() - began:.1f} s")
        return


def new_log(server, box, size_before):
    with open(box.log(server.name), errors="replace") as file:
        file.seek(size_before)
        return file.read()


def wait_ready(server, box, ports, limit):
    """Until its own process listens and answers."""
    deadline = time.monotonic() + limit
    reason = "it never listened"
    while time.monotonic() < deadline:
        pid = box.pid(server.name)
        if not pid:
            raise Failure(f"{server.name} ended")
        try:
            if all(owns_port(pid, port) for port in ports.values()):
                server.check(box, ports)
                return
        except Exception as error:  # a server that is only half up may answer anything
            reason = str(error)
        time.sleep(0.1)
    raise Failure(f"{server.name} was not ready after {limit} s ({reason})")


def down(box, names, kill=False):
    """Stops these parts, or all that run in the folder."""
    with box.lock():
        if names:
            servers = [server.name for part in chosen(names) for server in part.servers()]
        else:
            servers = box.started()
            names = [name for name in known() if box.saved(name)]
        stopped = box.stop(servers, kill)
        box.forget(names)
        refresh_groups(box)
    say(f"stopped: {', '.join(stopped) or 'nothing ran'}")


def main(action):
    """Runs a command line; a Failure is told without a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or what was just started would stay behind
    try:
        answer = action()
    except Failure as failure:
        say(f"error: {failure}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    if answer is not None:
        print(json.dumps(answer, indent=1))
