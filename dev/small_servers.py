"""Prometheus, Alertmanager and Redis, each with a small configuration of its own."""

import os
import shutil
import socket
import urllib.request
from pathlib import Path

from instance import Failure, write
from parts import Server
from tools import VERSIONS, as_root, installed, library_path, run, say, unpacked

TEMPLATES = Path("/usr/share/prometheus/alertmanager")

PROMETHEUS_CONFIG = """\
global:
  scrape_interval: 5s
scrape_configs:
  - job_name: prometheus
    static_configs:
      - targets: ["127.0.0.1:{http}"]
"""

ALERTMANAGER_CONFIG = """\
route:
  receiver: nobody
receivers:
  - name: nobody
"""


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read()


class Prometheus(Server):
    limit = 60

    def replacement(self):
        return NewestPrometheus(self.name) if os.environ.get("DUP_PROMETHEUS") == "newest" else self

    def install(self):
        return unpacked("prometheus", ("prometheus",), "the Prometheus server and promtool")

    def prepare(self, box, ports):
        write(box.part_folder(self.name) / "prometheus.yml", PROMETHEUS_CONFIG.format(**ports))

    def program(self, name):
        return self.install() / "usr/bin" / name

    def command(self, box, ports):
        folder = box.part_folder(self.name)
        config = os.path.abspath(os.environ.get("DUP_PROMETHEUS_CONFIG") or folder / "prometheus.yml")
        return [self.program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{ports['http']}", "--web.enable-lifecycle", "--web.cors.origin=.*",
                "--log.level=warn"], {}

    def check(self, box, ports):
        get(f"http://127.0.0.1:{ports['http']}/-/ready")
        get(f"http://127.0.0.1:{ports['http']}/api/v1/query?query=vector(1)")

    def describe(self, box):
        return {"url": f"http://127.0.0.1:{self.ports(box)['http']}", "promtool": str(self.program("promtool"))}


class NewestPrometheus(Prometheus):
    """The newest one, built from its Go modules: it is in no package of Debian."""

    def install(self):
        version = VERSIONS["PROMETHEUS3"]

        def build(folder):
            if not shutil.which("go"):
                raise Failure("Go is missing, which builds the newest Prometheus: install it (https://go.dev/dl)")
            modules = [f"github.com/prometheus/prometheus/cmd/{name}@{version}" for name in ("prometheus", "promtool")]
            # The discoveries of targets are most of the code, and nobody is discovered here.
            run(["go", "install", "-tags=remove_all_sd,netgo", *modules], env={**os.environ, "GOBIN": str(folder / "bin")})

        return installed(f"prometheus-{version}", build, "the newest Prometheus and promtool (Go modules; takes minutes)")

    def program(self, name):
        return self.install() / "bin" / name


class Alertmanager(Server):
    limit = 60

    def install(self):
        folder = unpacked("alertmanager", ("prometheus-alertmanager",), "Alertmanager and amtool")
        # Debian's binary reads its message templates from there and nowhere else.
        if not (TEMPLATES / "default.tmpl").exists():
            say(f"copying Alertmanager's two message templates to {TEMPLATES}")
            run(as_root(["mkdir", "-p", str(TEMPLATES)]))
            run(as_root(["cp", *(f"{folder}{TEMPLATES}/{name}.tmpl" for name in ("default", "email")), str(TEMPLATES)]))
        return folder

    def prepare(self, box, ports):
        write(box.part_folder(self.name) / "alertmanager.yml", ALERTMANAGER_CONFIG)

    def command(self, box, ports):
        folder = box.part_folder(self.name)
        config = os.path.abspath(os.environ.get("DUP_ALERTMANAGER_CONFIG") or folder / "alertmanager.yml")
        return [self.install() / "usr/bin/prometheus-alertmanager", f"--config.file={config}",
                f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{ports['http']}",
                "--cluster.listen-address=", "--log.level=warn"], {}  # no cluster: it would listen everywhere

    def check(self, box, ports):
        get(f"http://127.0.0.1:{ports['http']}/-/ready")
        get(f"http://127.0.0.1:{ports['http']}/api/v2/status")

    def describe(self, box):
        return {"url": f"http://127.0.0.1:{self.ports(box)['http']}", "amtool": str(self.install() / "usr/bin/amtool")}


class Redis(Server):
    limit = 30
    port_names = ("redis",)

    def install(self):
        return unpacked("redis", ("redis-server", "redis-tools"), "Redis")

    def command(self, box, ports):
        folder = self.install()
        return [folder / "usr/bin/redis-server", "--bind", "127.0.0.1", "--port", ports["redis"],
                "--dir", box.part_folder(self.name), "--save", "", "--appendonly", "yes"], library_path(folder)

    def check(self, box, ports):
        with socket.create_connection(("127.0.0.1", ports["redis"]), 5) as connection:
            connection.sendall(b"PING\r\n")
            if not connection.recv(64).startswith(b"+PONG"):
                raise ValueError("still loading")

    def describe(self, box):
        port = self.ports(box)["redis"]
        return {"url": f"redis://127.0.0.1:{port}", "host": "127.0.0.1", "port": port}


def parts():
    listed = [Prometheus("prometheus"), Alertmanager("alertmanager"), Redis("redis")]
    return {part.name: part for part in listed}
