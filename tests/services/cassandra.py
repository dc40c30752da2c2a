"""Apache Cassandra from its published jars: one node, or several on 127.0.0.1, .2 and .3."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services import HOME, Unavailable, cql, locked
from tests.services.process import Running, free_port, get, spawn, tool
from tests.services.tls import material

VERSION = "5.0.9"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
USER = PASSWORD = "cassandra"
DATA_CENTRE = "datacenter1"
TOKENS = (-9223372036854775808, -3074457345618258603, 3074457345618258602)

EXPORTS = [
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
]
OPENS = [
    "java.base/java.lang.module",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "java.base/java.io",
    "java.base/java.lang.reflect",
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
    "jdk.management/com.sun.management.internal",
]
QUICK = [
    "cassandra.skip_wait_for_gossip_to_settle=0",
    "cassandra.superuser_setup_delay_ms=0",
    "cassandra.shutdown_announce_in_ms=0",
    "cassandra.unsafesystem=true",
    "cassandra-foreground=yes",
    "cassandra.auth_bcrypt_gensalt_log2_rounds=4",
    "jdk.attach.allowAttachSelf=true",
    "io.netty.tryReflectionSetAccessible=true",
]

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{}</version></dependency>
</dependencies></project>
"""
LOGBACK = """<configuration><appender name="F" class="ch.qos.logback.core.FileAppender"><file>{}</file>
<encoder><pattern>%-5level %date{{HH:mm:ss.SSS}} %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="F"/></root></configuration>
"""


def fetch() -> Path:
    """The folder of jars, got through Maven on first use."""
    jars = HOME / "jars" / VERSION
    with locked("jars"):
        if not jars.exists():
            _java()
            maven, beside = tool("mvn"), jars.with_name(f"{VERSION}.part")
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            pom = beside / "pom.xml"
            pom.write_text(POM.format(VERSION))
            copy = [f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={beside}"]
            get([maven, "-q", "-B", "-ntp", "-Dmaven.artifact.threads=16", "-f", pom, *copy], seconds=300)
            beside.rename(jars)
    return jars


@dataclass(frozen=True)
class Node:
    """One server: with passwords, and TLS beside plain connections on one port; or with client certificates only."""

    name: str = "cassandra"
    host: str = "127.0.0.1"
    port: int = 19042
    seeds: Sequence[str] = ("127.0.0.1",)
    storage_port: int = 17000
    token: int = 0
    mutual: bool = False
    """Only clients with a certificate of ours may connect; there are no passwords then."""
    ring_delay_ms: int = 0
    benchmark: bool = False
    """Compiles hot code fully, which costs seconds at the start."""

    @property
    def home(self) -> Path:
        return HOME / "data" / self.name

    @property
    def log(self) -> Path:
        return self.home / "system.log"

    def start(self) -> Running:
        """Starts it on what data it has. Returns before it is ready."""
        jars, java = fetch(), _java()
        (self.home / "conf").mkdir(parents=True, exist_ok=True)
        (self.home / "conf" / "cassandra.yaml").write_text(json.dumps(self._yaml()))  # JSON is YAML
        (self.home / "conf" / "logback.xml").write_text(LOGBACK.format(self.log))
        self.log.unlink(missing_ok=True)
        heap = "512m" if self.name == "cassandra" or self.benchmark else "384m"
        command = [
            *(java, f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=512m"),
            *("-XX:+ExitOnOutOfMemoryError", *([] if self.benchmark else ["-XX:TieredStopAtLevel=1"])),
            *(part for name in EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")),
            *(part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
            *(f"-D{setting}" for setting in QUICK),
            f"-Dcassandra.ring_delay_ms={self.ring_delay_ms}",
            f"-Dcassandra.config=file:{self.home}/conf/cassandra.yaml",
            f"-Dlogback.configurationFile={self.home}/conf/logback.xml",
            f"-Dcassandra.storagedir={self.home}/data",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]
        ports = {"cql": self.port, "storage": self.storage_port}
        return spawn(self.name, command, ports=ports, log=self.home / "out.log", env={})

    def wait_ready(self, running: Running) -> None:
        """Until one can log in. What it said before it ended is in its own log."""
        try:
            running.wait_until(self._started, 300.0)
            running.wait_until(self._lets_in, 300.0)
        except Unavailable as error:
            words = [line for line in _lines(self.log) if line.startswith("ERROR")]
            raise Unavailable(f"{error}{'; ' + words[-1][:300] if words else ''}") from None

    def _started(self) -> bool:
        return any("Startup complete" in line for line in _lines(self.log))

    def _lets_in(self) -> bool:
        tls = material()
        files = f"&ca={tls.ca}&cert={tls.client.cert}&key={tls.client.key}" if self.mutual else ""
        login = "" if self.mutual else f"{USER}:{PASSWORD}@"
        url = f"cassandra://{login}{self.host}:{self.port}/any/any?timeout=5&connections=1&io_threads=1{files}"
        try:
            cql.execute(url, seconds=30)
        except cql.Failed:
            return False
        return True

    def _yaml(self) -> dict[str, object]:
        tls = material()
        passwords = {
            "authenticator": "PasswordAuthenticator",
            "authorizer": "CassandraAuthorizer",
            "role_manager": "CassandraRoleManager",
        }
        return {
            "cluster_name": "headrace",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "10s",
            "commitlog_total_space": "256MiB",
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": ",".join(self.seeds)}],
                }
            ],
            "listen_address": self.host,
            "rpc_address": self.host,
            "native_transport_port": self.port,
            "storage_port": self.storage_port,
            "num_tokens": 1,
            "initial_token": str(self.token),
            "disk_access_mode": "mmap",
            "auto_snapshot": False,
            "hinted_handoff_enabled": False,  # what a node missed it goes on to miss, for those who test that
            **({} if self.mutual else passwords),
            "client_encryption_options": {
                "enabled": True,
                "optional": not self.mutual,
                "require_client_auth": self.mutual,
                "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
                "keystore": str(tls.server.bundle),
                "keystore_password": "",
                "truststore": str(tls.ca),
            },
        }


def single(*, name: str = "cassandra", benchmark: bool = False) -> Node:
    """One node on 127.0.0.1, on ports that are free now."""
    return Node(name, port=free_port(19042), storage_port=free_port(17000), benchmark=benchmark)


def cluster(count: int = 3, *, mutual: bool = False) -> list[Node]:
    """Nodes that are all seeds, so that none waits for another, with equal parts of the ring."""
    hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
    port, storage = free_port(19242, hosts), free_port(17200, hosts)
    return [
        Node(f"cassandra-{os.getpid()}-{host}", host, port, hosts, storage, token, mutual, ring_delay_ms=1000)
        for host, token in zip(hosts, TOKENS, strict=False)
    ]


def _java() -> str:
    java = tool("java")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < 17:
        raise Unavailable(f"java 17 is needed, not {told.splitlines()[0] if told else 'this'}")
    return java


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
