"""A cluster on this machine: an HDFS of one data node, and a standalone Spark of a master and two
workers, as processes.

with hdfs(folder) as uri, standalone(folder) as master:
    program("-m", "purgatory.pipeline", "report", f"{uri}/journal", "--out", f"{uri}/out",
    "--master", master)
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark
from java import JAVA_FOR_TESTS
from maven import Unavailable, jars
from ports import free_ports

JARS: Final = Path(pyspark.__file__).parent / "jars"
HADOOP: Final = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "commons-logging:commons-logging:1.3.5",
)
"""What Spark's own jars lack for a server of HDFS."""
NAMENODE: Final = """\
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class Hdfs {
    public static void main(String[] folder) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set("hdfs.minidfs.basedir", folder[0]);
        try (MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration).numDataNodes(1).build()) {
            cluster.waitActive();
            System.out.println(cluster.getFileSystem().getUri());
            System.in.read();
        }
    }
}
"""
SMALL: Final = ("-Xmx512m",)
TIMEOUT: Final = 200.0
"""Seconds that a start may take: a busy machine needs a part of it."""


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """The URI of an HDFS whose data is in `folder`.

    Raises:
        Unavailable: there is no Java with its compiler, or its jars cannot be downloaded.
    """
    source = folder / "Hdfs.java"
    source.write_text(NAMENODE)
    path = [
        *jars(*HADOOP, alone=True),
        *JARS.glob("hadoop-client-*.jar"),
        *JARS.glob("slf4j-api-*.jar"),
    ]
    command = [_java(), *SMALL, "-cp", ":".join(map(str, path)), str(source), str(folder / "hdfs")]
    with (
        (folder / "hdfs.log").open("wb") as log,
        _process(command, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        assert server.stdout is not None
        uri = server.stdout.readline().decode().strip()
        if not uri:
            raise Unavailable(f"HDFS does not start: {(folder / 'hdfs.log').read_text()[-1000:]}")
        yield uri


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """The URL of a Spark whose workers have a core and a folder each."""
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    java = [_java(), *SMALL, "-cp", f"{JARS}/*"]
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    master = ["org.apache.spark.deploy.master.Master", *local, "--port", str(port)]
    worker = ["org.apache.spark.deploy.worker.Worker", *local, "-c", "1", "-m", "1g"]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "spark.log").open("ab"))
        stack.enter_context(_process([*java, *master], stdout=log, stderr=log))
        _await(port)
        for number in range(workers):
            place = folder / f"worker-{number}"
            place.mkdir()
            stack.enter_context(
                _process([*java, *worker, "-d", str(place), url], stdout=log, stderr=log, cwd=place)
            )
        yield url


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise Unavailable("needs Java 17: apt-get install openjdk-17-jdk-headless")
    return java


@contextmanager
def _process(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        **JAVA_FOR_TESTS,
        "SPARK_HOME": str(JARS.parent),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, env=environment, start_new_session=True, **options
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _await(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise Unavailable("Spark's master does not start")
        time.sleep(0.05)
