"""Kills `stream` again and again, the driver with its JVM or one of its Python workers, and checks
its output at the end.

    python tests/pipeline/kill_stream.py --times 10 --folder DIR [--master
    'local-cluster[2,1,1024]'] [--kafka json|binary]

Every third time a worker dies, otherwise everything does, at a random moment after the first batch
of each start. With ``--kafka`` the traffic is in topics of a Kafka that is started for this, and
outcomes go to a topic, too. With ``--idle`` the last operations expire by the silence of both
inputs; otherwise operations due by the newest event are decided. Exits with 1 if an outcome is
lost, doubled or different from a `ThresholdPurgatory`'s; copies in the topic are counted.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import topics
from check_stream import by_thresholds, written
from kafka_server import KafkaServer, kafka_server
from orders import Traffic, traffic, write
from streams import known


def start(
    folder: Path,
    master: str,
    kafka: KafkaServer | None,
    values: str,
    to_the_end: bool,
    idle: str | None,
) -> "subprocess.Popen[str]":
    if kafka is None:
        pairs = {name: folder / name for name in ("operations", "signals", "out", "checkpoint")}
        command = [
            sys.executable,
            "-m",
            "purgatory.pipeline",
            "stream",
            "--shards",
            "2",
            "--files-per-batch",
            "1",
        ]
        command += [part for name, path in pairs.items() for part in (f"--{name}", str(path))]
    else:
        command = topics.command(
            folder, kafka.address, "--values", values, "--records-per-batch", "500"
        )
    more = ["--available-now"] if to_the_end else [] if idle is None else ["--idle", idle]
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [*command, "--master", master, *more],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def workers(leader: int) -> list[int]:
    """The Python workers of a job, by the process group that they were started in, or their
    session."""
    listing = subprocess.run(
        ["ps", "-eo", "pid,sess,args"], capture_output=True, text=True, check=True
    ).stdout
    found = [line.split(None, 2) for line in listing.splitlines()[1:]]
    return [
        int(pid)
        for pid, session, command in found
        if int(session) == leader and "pyspark.daemon" in command
    ]


def kill(job: "subprocess.Popen[str]", chance: random.Random, worker: bool) -> str:
    """Kills one worker or everything; returns which."""
    victims = workers(job.pid) if worker else []
    if not victims:
        os.killpg(job.pid, signal.SIGKILL)
        return "driver"
    os.kill(chance.choice(victims), signal.SIGKILL)
    return "worker"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--operations", type=int, default=6000)
    parser.add_argument("--signals", type=int, default=20000)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument(
        "--kafka",
        choices=("json", "binary"),
        metavar="VALUES",
        help="from topics; how records are written",
    )
    parser.add_argument("--idle", metavar="SECONDS", help="of `stream`")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    made = traffic(options.operations, options.signals, seconds=600, keys=200, seed=options.seed)
    if options.kafka is None:
        write(made, options.folder, files=options.files)
        return follow(options, made, None)
    with kafka_server(options.folder / "kafka") as kafka:
        topics.make_topics(kafka.address, 3, "operations", "signals", "outcomes")
        topics.send_traffic(kafka.address, made, options.kafka, partitions=3)
        return follow(options, made, kafka)


def follow(options: argparse.Namespace, made: Traffic, kafka: KafkaServer | None) -> int:
    chance = random.Random(options.seed)
    killed = {"driver": 0, "worker": 0}
    newest = max(made.operations[-1][3], made.signals[-1][2])
    expected = by_thresholds(made)
    if options.idle is None:
        expected = [row for row in expected if row[2] <= newest]
    status = None
    while status != 0:
        # Until the last kill the job sends outcomes to the topic all the time, so that kills
        # interrupt that, too.
        to_the_end = kafka is None or sum(killed.values()) >= options.times
        to_the_end &= options.idle is None
        job = start(options.folder, options.master, kafka, options.kafka, to_the_end, options.idle)
        batches: list[str] = []
        reader = threading.Thread(
            target=lambda lines, into: into.extend(iter(lines.readline, "")),
            args=(job.stdout, batches),
        )
        reader.start()
        seen = 0
        while job.poll() is None:
            time.sleep(0.1)
            is_killed = sum(killed.values()) >= options.times
            if (
                options.idle is not None
                and is_killed
                and len(known(options.folder)) == len(expected)
            ):
                time.sleep(10)  # for the topic
                job.terminate()
                break
            if len(batches) > seen and sum(killed.values()) < options.times:
                time.sleep(chance.uniform(0, 5))
                seen = len(batches)
                name = kill(job, chance, worker=sum(killed.values()) % 3 == 2)
                killed[name] += 1
                print(f"{time.strftime('%X')} killed a {name} after {seen} batches", flush=True)
        status = job.wait()
        reader.join()
        print(f"{time.strftime('%X')} the job ended with {status}", flush=True)
    print(*batches[-2:], sep="", end="")
    found = written(options.folder / "out")
    print(
        f"killed {killed}; {len(found)} outcomes, {len({row[0] for row in found})} different "
        f"ids, of {len(expected)}"
    )
    print("not one lost, doubled or different" if found == expected else "they DIFFER")
    if kafka is None:
        return int(found != expected)
    records = topics.records_of(kafka.address, "outcomes")
    decisions = sorted(topics.decisions(records))
    copies = len(records) - len(decisions)
    print(f"in the topic: {len(records)} records, {copies} of them copies")
    is_same = decisions == expected
    print("without copies they are the same" if is_same else "without copies they DIFFER")
    return int(found != expected or not is_same)


if __name__ == "__main__":
    sys.exit(main())
