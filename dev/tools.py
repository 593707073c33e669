"""Installing: virtual environments, jars, Debian packages. Each is put in once, in a shared folder of tools.

Nothing here starts a service or changes the machine more than it must: a server that Debian ships is unpacked
into the folder, and only libraries, compilers, Java and Maven are installed by apt.
"""

import functools
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from instance import Failure, file_lock

DEV = Path(__file__).resolve().parent
TOOLS = Path(os.environ.get("DUP_DEV_TOOLS") or DEV.parent / ".dev" / "tools").resolve()
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks this script whether it may start a service
BUILD_PACKAGES = (
    "gcc g++ make pkg-config libssl-dev libsasl2-dev zlib1g-dev libcurl4-openssl-dev libzstd-dev python3-venv"
).split()


def read_versions():
    lines = (DEV / "versions.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


VERSIONS = read_versions()


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **options):
    """Runs a command whose output nobody needs unless it fails."""
    done = subprocess.run(
        [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", **options,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise Failure(f"{' '.join(str(word) for word in command)} failed ({done.returncode}):\n{tail}")
    return done.stdout


def installed(name, install, why):
    """The folder of a tool; `install(folder)` fills it if nobody has. A folder half filled is begun again."""
    folder = TOOLS / name
    done = folder / ".installed"
    with file_lock(TOOLS / f"{name}.lock"):
        if not done.exists():
            say(f"installing {name}: {why}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install(folder)
            done.touch()
    return folder


# Python

def venv(package, version, why):
    """The interpreter of a virtual environment with this one package."""
    def install(folder):
        try:
            import ensurepip  # noqa: F401  Debian ships it apart, in python3-venv
        except ImportError:
            apt_install(["python3-venv"], "to make virtual environments")
        run([sys.executable, "-m", "venv", folder])
        pip = [folder / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
        run([*pip, "install", f"{package}=={version}"])

    return installed(f"{package}-{version}", install, f"{why} (pip)") / "bin/python"


# Java

@functools.cache
def java():
    """A Java of 17 or later."""
    path = find_java()
    if not path:
        apt_install(["openjdk-17-jre-headless"], "Kafka runs on Java 17")
        path = find_java()
    if not path:
        raise Failure("no Java of 17 or later found: set JAVA_HOME")
    return path


def find_java():
    home = os.environ.get("JAVA_HOME")
    candidates = [f"{home}/bin/java"] if home else []
    for candidate in [*candidates, "java", *glob.glob("/usr/lib/jvm/java-17-openjdk-*/bin/java")]:
        path = shutil.which(candidate)
        if path and java_version(path) >= 17:
            return path
    return None


def java_version(path):
    text = subprocess.run([path, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def kafka_jars(version=None):
    """The folder of Kafka's jars: out of Maven Central, or of an unpacked Kafka that the user names for the newest."""
    home = os.environ.get("KAFKA_HOME")
    if home and not version:
        return Path(home) / "libs"
    version = version or VERSIONS["KAFKA"]

    def install(folder):
        java()  # first, or apt would pick one for Maven that Kafka can't use
        if not shutil.which("mvn"):
            apt_install(["maven"], "to fetch Kafka's jars")
        run(["mvn", "-B", "-q", "-f", DEV / "kafka/pom.xml", f"-Dkafka.version={version}",
             f"-Dlog4j.version={VERSIONS['LOG4J']}", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"])

    return installed(f"kafka-{version}", install, "the Kafka broker (Maven Central)")


# Debian

def as_root(command):
    return command if os.geteuid() == 0 else ["sudo", *command]


def apt_get(*arguments, **options):
    if not shutil.which("apt-get"):
        raise Failure(f"this needs Debian's apt-get ({' '.join(arguments)}): install it by hand, or use compose.yaml")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    command = [*quiet, "-o", "DPkg::Lock::Timeout=300", *arguments]
    return run(command if options.pop("plain", False) else as_root(command), **options)


def with_fresh_lists(action):
    """Package lists that are missing or old make apt fail: then they are fetched, and it is tried once more."""
    try:
        return action()
    except Failure:
        say("apt-get update, because apt could not find or fetch a package")
        apt_get("update")
        return action()


def is_installed(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", package], capture_output=True, text=True)
    return done.stdout == "install ok installed"


def apt_install(packages, why):
    if not shutil.which("apt-get"):
        raise Failure(f"{', '.join(packages)} missing ({why}), and no apt-get to install with: do it by hand")
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return
    say(f"installing {' '.join(missing)}: {why} (apt)")
    with file_lock(TOOLS / "apt.lock"):
        ours = forbid_services()
        try:
            with_fresh_lists(lambda: apt_get("install", "--no-install-recommends", *missing))
        finally:
            if ours:
                run(as_root(["rm", "-f", str(POLICY)]))


def forbid_services():
    """Keeps packages from starting services, unless the machine has a policy of its own."""
    if POLICY.exists():
        return False
    draft = TOOLS / "policy-rc.d"
    draft.write_text("#!/bin/sh\nexit 101\n")
    run(as_root(["install", "-m", "755", str(draft), str(POLICY)]))
    return True


def unpacked(name, packages, why):
    """The folder in which Debian packages lie unpacked, with those of their libraries that the machine lacks.

    A server that is not installed but unpacked brings no service, no user and no file outside.
    """
    def install(folder):
        (folder / "debs").mkdir()
        with_fresh_lists(lambda: download(folder / "debs", packages))
        for file in sorted((folder / "debs").glob("*.deb")):
            run(["dpkg-deb", "-x", file, folder])
        shutil.rmtree(folder / "debs")

    return installed(f"debian-{name}", install, f"{why} (Debian packages, unpacked)")


def download(folder, packages):
    plan = apt_get("install", "-s", "--no-install-recommends", *packages, plain=True)
    wanted = set(packages) | set(re.findall(r"^Inst (\S+) \(", plan, re.M))  # "Inst NAME [OLD] (NEW" are upgrades
    # apt would like another user to do this, who may not write here.
    apt_get("-o", "APT::Sandbox::User=root", "download", *sorted(wanted), plain=True, cwd=folder)


def library_path(folder):
    """The environment in which an unpacked program finds its unpacked libraries."""
    found = [str(path) for path in (*folder.glob("usr/lib/*-linux-gnu*"), *folder.glob("lib/*-linux-gnu*"))]
    return {"LD_LIBRARY_PATH": ":".join(found)}
