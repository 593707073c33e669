"""Two shards of two replicas each: four ClickHouse 18.16 servers, and the ZooKeeper that their replicated tables need."""

import os
import socket
import time

from clickhouse import Debian
from instance import Failure, write
from parts import Group, Server
from tools import java, unpacked

# By name and by itself: what the machine has installed already would not be unpacked as a dependency.
PACKAGES = ("libzookeeper-java", "libslf4j-java", "libdropwizard-metrics-java", "libsnappy-java")
JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")

ZOOKEEPER_CONFIG = """\
clientPort={client}
clientPortAddress=127.0.0.1
dataDir={folder}/data
tickTime=500
admin.enableServer=false
4lw.commands.whitelist=ruok
"""


class ZooKeeper(Server):
    """One ZooKeeper, alone."""

    port_names = ("client",)

    def install(self):
        java()
        return unpacked("zookeeper", PACKAGES, "ZooKeeper, for replicated tables of ClickHouse")

    def prepare(self, box, ports):
        folder = box.part_folder(self.name)
        write(folder / "zoo.cfg", ZOOKEEPER_CONFIG.format(folder=folder, **ports))

    def command(self, box, ports):
        jars = ":".join(f"{self.install()}/usr/share/java/{jar}.jar" for jar in JARS)
        return [java(), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars,
                "org.apache.zookeeper.server.ZooKeeperServerMain", box.part_folder(self.name) / "zoo.cfg"], {}

    def check(self, box, ports):
        with socket.create_connection(("127.0.0.1", ports["client"]), 5) as connection:
            connection.sendall(b"ruok")
            if connection.recv(16) != b"imok":
                raise ValueError("not ready")

    def access(self, box):
        return {"port": self.ports(box)["client"]}

    describe = access


class Replica(Debian):
    """One of the four. Each keeps its port for the others, so it may be killed and started alone."""

    # What a user of 18.16 needs in place of clusterAllReplicas: a cluster whose shards are the replicas.
    clusters = {"grid": ((0, 1), (2, 3)), "all_replicas": ((0,), (1,), (2,), (3,))}

    def __init__(self, name, peers, keeper, shard, replica):
        super().__init__(name, peers)
        self.keeper = keeper
        self.shard = shard
        self.replica = replica

    def command(self, box, ports):
        """Under a host name of its own, by which queries tell the servers of a cluster apart."""
        command, environment = super().command(box, ports)
        own_name = ["unshare", "--uts", *([] if os.geteuid() == 0 else ["--map-root-user"]),
                    "sh", "-c", 'hostname "$0" && exec "$@"', f"grid-{self.shard}{self.replica}"]
        return own_name + command, environment

    def prepare(self, box, ports):
        super().prepare(box, ports)
        # A server that has replicated tables already would not start without it.
        deadline = time.monotonic() + self.keeper.limit
        while True:
            try:
                return self.keeper.check(box, self.keeper.ports(box))
            except (OSError, ValueError) as error:
                if time.monotonic() > deadline:
                    raise Failure(f"{self.name}: no ZooKeeper ({error})") from None
            time.sleep(0.05)

    def more(self, box):
        port = self.keeper.ports(box)["client"]
        return (f"  <zookeeper><node><host>127.0.0.1</host><port>{port}</port></node>"
                "<session_timeout_ms>10000</session_timeout_ms></zookeeper>\n"
                f"  <macros><shard>{self.shard}</shard><replica>{self.replica}</replica></macros>\n")


class Grid(Group):
    """All five."""

    def install(self):
        for server in self.members[:2]:
            server.install()

    def describe(self, box):
        return {server.name.removeprefix(f"{self.name}."): server.access(box) for server in self.members}


def parts():
    name = "clickhouse-2x2"
    keeper = ZooKeeper(f"{name}.zookeeper")
    replicas = []
    for shard, replica in ((1, 1), (1, 2), (2, 1), (2, 2)):
        replicas.append(Replica(f"{name}.{shard}{replica}", replicas, keeper, shard, replica))
    grid = Grid(name, [keeper, *replicas])
    return {part.name: part for part in (grid, *grid.members)}
