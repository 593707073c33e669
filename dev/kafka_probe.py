"""Just enough of the Kafka protocol to tell whether a broker is ready, so that dev/up needs no client library.

A broker that accepts connections may still refuse groups for some seconds. So three questions are asked, in the
oldest version of each that Kafka 4 understands: Metadata v0, FindCoordinator v0 and DescribeGroups v0.
"""

import socket
import struct

METADATA, FIND_COORDINATOR, DESCRIBE_GROUPS = 3, 10, 15


class NotReady(ValueError):
    pass


def text(value):
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Reader:
    """Takes one answer apart."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def number(self, kind):
        value, = struct.unpack_from(f">{kind}", self.data, self.at)
        self.at += struct.calcsize(f">{kind}")
        return value

    def text(self):
        length = self.number("h")
        value = self.data[self.at:self.at + max(length, 0)]
        self.at += max(length, 0)
        return value.decode()


def ask(address, key, body, timeout=5):
    header = struct.pack(">hhi", key, 0, 1) + text("dev")
    with socket.create_connection(address, timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        length, = struct.unpack(">i", exactly(connection, 4))
        return Reader(exactly(connection, length)[4:])  # after the correlation id


def exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise NotReady("the broker closed the connection")
        data += part
    return data


def brokers(address):
    """{node id: (host, port)} of the brokers that are up, as one of them knows it."""
    answer = ask(address, METADATA, struct.pack(">i", 1) + text("no-such-topic"))  # an empty list means all topics
    found = {}
    for _ in range(answer.number("i")):
        node = answer.number("i")
        found[node] = (answer.text(), answer.number("i"))
    return found


def check_group(address, group):
    """Passes only when the group's coordinator is known and has loaded its groups."""
    answer = ask(address, FIND_COORDINATOR, text(group))
    error = answer.number("h")
    answer.number("i")  # the node's id
    host, port = answer.text(), answer.number("i")
    if error:
        raise NotReady(f"no coordinator for groups yet (Kafka error {error})")
    answer = ask((host, port), DESCRIBE_GROUPS, struct.pack(">i", 1) + text(group))
    answer.number("i")  # the length of the list
    error = answer.number("h")
    if error not in (0, 69):  # 69: no such group
        raise NotReady(f"the coordinator is not ready (Kafka error {error})")


def check_broker(address, node, at_least=1):
    """Passes when this broker, and so many in all, have joined and coordinate groups."""
    joined = brokers(address)
    if node not in joined or len(joined) < at_least:
        raise NotReady(f"broker {node} has not joined yet, or not all others: {sorted(joined)}")
    for number in range(8):  # enough names to meet every partition of the offsets topic
        check_group(address, f"dev-ready-{number}")


def check_any_broker(address):
    if not brokers(address):
        raise NotReady("no broker in the cluster yet")
