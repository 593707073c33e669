"""ClickHouse servers: the 26.9 and 23.10 engines out of PyPI behind chdb_server.py, and Debian's 18.16."""

import json
import os
import urllib.error
import urllib.request

from instance import write
from parts import Server
from tools import DEV, VERSIONS, library_path, unpacked, venv

OLD_PACKAGES = ("clickhouse-server", "clickhouse-common")

USER = "dup"
PASSWORD = "dup-password"
# Users of 18.16, whose password is their name and "-password": profile, network, and the databases that they may see.
LOCAL = "127.0.0.1"
READERS = {
    "ro1": ("ro1", LOCAL, ()),  # readonly=1
    "ro2": ("ro2", LOCAL, ()),  # readonly=2
    "lax": ("lax", LOCAL, ()),  # its profile makes answers wrong without an error
    "granted": ("ro2", LOCAL, ("granted",)),
    "blind": ("ro2", LOCAL, ("system",)),
    "elsewhere": ("ro2", "10.1.2.3", ()),
}
FLUSH = 500  # milliseconds until a row of the logs can be read

# The engine out of PyPI would keep the database `system` in memory and so forget its logs at each start.
# A server keeps it on disk; the identifier may be any.
SYSTEM_DATABASE = "ATTACH DATABASE _ UUID '5f5f5f5f-0000-4000-8000-000000000001' ENGINE = Atomic\n"


def log_section(name):
    return (f"  <{name}><database>system</database><table>{name}</table>"
            f"<flush_interval_milliseconds>{FLUSH}</flush_interval_milliseconds></{name}>\n")


def ask(url, query, user=USER, password=PASSWORD):
    """One query over HTTP; its text, or OSError / ValueError."""
    request = urllib.request.Request(url, query.encode(), {"X-ClickHouse-User": user, "X-ClickHouse-Key": password})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        raise ValueError(error.read().decode("utf-8", "replace").strip()) from None


# The one user as whom the engine runs all queries. What its profile and its grants (a section <grants> with
# <query>GRANT …</query>) say, holds; a user made by CREATE USER is not to be had.
NEW_USERS = """\
<clickhouse>
  <profiles><default></default></profiles>
  <quotas><default></default></quotas>
  <users>
    <default>
      <password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
    </default>
  </users>
</clickhouse>
"""


class ClickHouse(Server):
    """What all of them share: the check, and the client's view."""

    def url(self, ports):
        return f"http://127.0.0.1:{ports['http']}"

    def check(self, box, ports):
        ask(self.url(ports), "SELECT 1")

    def access(self, box):
        """What of the answer can be told while it does not run."""
        return {"url": self.url(self.ports(box)), "user": USER, "password": PASSWORD}

    def describe(self, box):
        return {**self.access(box), "version": ask(self.url(self.ports(box)), "SELECT version()")}


class Chdb(ClickHouse):
    """An engine out of PyPI, behind an HTTP server of ours."""

    def __init__(self, name, package, version, logs):
        super().__init__(name)
        self.package = package
        self.version = version
        self.logs = logs

    def install(self):
        return venv(self.package, self.version, f"the ClickHouse engine of part {self.name}")

    def prepare(self, box, ports):
        folder = box.part_folder(self.name)
        sections = "".join(log_section(name) for name in self.logs)
        users = f"  <users_config>{folder}/users.xml</users_config>\n"
        write(folder / "config.xml", f"<clickhouse>\n{sections}{users}</clickhouse>\n")
        if not (folder / "users.xml").exists():  # a test may have put its own there
            write(folder / "users.xml", NEW_USERS)
        write(folder / "users.json", json.dumps({USER: PASSWORD}))
        if self.package == "chdb-core" and not (folder / "data").exists():  # later it could no longer be changed
            write(folder / "data/metadata/system.sql", SYSTEM_DATABASE)

    def command(self, box, ports):
        folder = box.part_folder(self.name)
        command = [self.install(), DEV / "chdb_server.py", "--port", ports["http"], "--path", folder / "data",
                   "--config", folder / "config.xml", "--users", folder / "users.json"]
        return command, {"TZ": os.environ.get("DUP_DEV_TZ", "UTC")}


OLD_CONFIG = """\
<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host>
  <interserver_http_host>127.0.0.1</interserver_http_host>
  <http_port>{http}</http_port>
  <tcp_port>{tcp}</tcp_port>
  <interserver_http_port>{interserver}</interserver_http_port>
  <path>{folder}/data/</path>
  <tmp_path>{folder}/tmp/</tmp_path>
  <format_schema_path>{folder}/schemas/</format_schema_path>
  <users_config>{folder}/users.xml</users_config>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
  <timezone>{timezone}</timezone>
  <mark_cache_size>33554432</mark_cache_size>
  <uncompressed_cache_size>0</uncompressed_cache_size>
  <max_concurrent_queries>100</max_concurrent_queries>
  <keep_alive_timeout>10</keep_alive_timeout>
  <remote_servers>
{clusters}  </remote_servers>
{more}</yandex>
"""

OLD_USERS = """\
<yandex>
  <profiles>
    <default><log_queries>1</log_queries><background_pool_size>4</background_pool_size></default>
    <ro1><readonly>1</readonly></ro1>
    <ro2><readonly>2</readonly></ro2>
    <lax>
      <readonly>2</readonly>
      <skip_unavailable_shards>1</skip_unavailable_shards>
      <max_replica_delay_for_distributed_queries>1</max_replica_delay_for_distributed_queries>
      <parallel_replicas_count>2</parallel_replicas_count>
      <parallel_replica_offset>1</parallel_replica_offset>
      <read_overflow_mode>break</read_overflow_mode>
    </lax>
  </profiles>
  <quotas><default></default></quotas>
  <users>
{users}  </users>
</yandex>
"""

# Clusters by their shards, and those by the numbers of their replicas.
# A server of 18.16 can't be asked for the rows of all replicas; a cluster in which each server is a shard can.
# `circular` names one of them twice: what a client then counts twice.
CLUSTERS = {"trio": ((0,), (1,), (2,)), "circular": ((0,), (1,), (0,))}


def user_section(name, password, profile, network=LOCAL, databases=()):
    allowed = "".join(f"<database>{database}</database>" for database in databases)
    allowed = f"<allow_databases>{allowed}</allow_databases>" if databases else ""
    return (f"    <{name}><password>{password}</password><profile>{profile}</profile><quota>default</quota>"
            f"<networks><ip>{network}</ip></networks>{allowed}</{name}>\n")


class Debian(ClickHouse):
    """The 18.16 server of Debian, one of several that know each other."""

    port_names = ("http", "tcp", "interserver")
    clusters = CLUSTERS

    def __init__(self, name, peers):
        super().__init__(name)
        self.peers = peers

    def install(self):
        return unpacked("clickhouse", OLD_PACKAGES, "the ClickHouse 18.16 server")

    def prepare(self, box, ports):
        folder = box.part_folder(self.name)
        for name in ("data", "tmp", "schemas"):
            (folder / name).mkdir(exist_ok=True)
        for server in self.peers:  # all of them: they reload the addresses of each other by themselves
            server.write_config(box)

    def write_config(self, box):
        folder = box.part_folder(self.name)
        write(folder / "config.xml", OLD_CONFIG.format(
            folder=folder, timezone=os.environ.get("DUP_DEV_TZ", "UTC"),
            more=log_section("part_log") + log_section("query_log") + self.more(box),
            clusters="".join(self.cluster_section(box, name, shards) for name, shards in self.clusters.items()),
            **self.ports(box)))
        users = user_section(USER, PASSWORD, "default")
        users += "".join(user_section(name, f"{name}-password", *traits) for name, traits in READERS.items())
        write(folder / "users.xml", OLD_USERS.format(users=users))

    def more(self, box):
        """Sections of the configuration that a subclass adds."""
        return ""

    def cluster_section(self, box, name, shards):
        def replica(member):
            return (f"<replica><host>127.0.0.1</host><port>{self.peers[member].ports(box)['tcp']}</port>"
                    f"<user>{USER}</user><password>{PASSWORD}</password></replica>")

        sections = "".join(
            f"<shard><internal_replication>true</internal_replication>{''.join(map(replica, members))}</shard>\n"
            for members in shards)
        return f"<{name}>\n{sections}</{name}>\n"

    def command(self, box, ports):
        folder = self.install()
        config = box.part_folder(self.name) / "config.xml"
        return [folder / "usr/sbin/clickhouse-server", f"--config-file={config}"], library_path(folder)

    def access(self, box):
        readers = {name: {"user": name, "password": f"{name}-password"} for name in READERS}
        return {**super().access(box), **readers, "tcp_port": self.ports(box)["tcp"]}


def old_servers():
    trio = []
    for name in ("clickhouse-18", "clickhouse-18b", "clickhouse-18c"):
        trio.append(Debian(name, trio))
    return trio


def parts():
    import clickhouse_grid  # here, since it imports this module

    new = ("chdb-core", VERSIONS["CHDB_CORE"])
    return {part.name: part for part in (
        Chdb("clickhouse", *new, logs=("part_log", "query_log")),
        Chdb("clickhouse-nolog", *new, logs=("query_log",)),
        Chdb("clickhouse-23", "chdb", VERSIONS["CHDB_MIDDLE"], logs=()),
        *old_servers(),
    )} | clickhouse_grid.parts()
