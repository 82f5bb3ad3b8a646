"""Suites are downloaded, run on a broker and reported: failures are distinguished from tests out of
scope."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import client_suites
import pytest
from brokers import is_free, request_versions, running
from client_suites import page
from maven import Unavailable
from ports import free_ports
from proxies import proxies
from requirements import unavailable
from suites import Expected, GoSuite, PythonSuite, Result

ONE_NODE = "there is one node with one disk"
PYTHON = PythonSuite(
    "pytest", "tests/integration", {}, {}, out_of_scope={"test_elect_leaders": ONE_NODE}
)
GO = GoSuite(
    "example.com/some/client@v1.2.3",
    "kgo",
    {},
    uses_broker="newClient",
    out_of_scope={"TestRegex": "no topic"},
)
REPORT = """<testsuites><testsuite name="pytest">
<testcase name="test_group" time="1.0"/>
<testcase name="test_end_to_end[zstd]"><failure message="assert 1 == 2&#10;  | + 1">trace</failure></testcase>
<testcase name="test_elect_leaders"><failure message="socket disconnected">trace</failure></testcase>
<testcase name="test_elect_leaders[all]"><error message="failed on setup">trace</error></testcase>
<testcase name="test_admin[PLAIN]"><skipped message="Testing on external Kafka Broker">where</skipped></testcase>
</testsuite></testsuites>"""


def test_each_reported_test_has_one_outcome_and_reason() -> None:
    assert list(PYTHON.results(ET.ElementTree(ET.fromstring(REPORT)))) == [
        Result("test_group", "passed"),
        Result("test_end_to_end[zstd]", "failed", "assert 1 == 2 / + 1"),
        Result("test_elect_leaders", "out of scope", ONE_NODE),
        Result("test_elect_leaders[all]", "out of scope", ONE_NODE),
        Result("test_admin[PLAIN]", "skipped", "Testing on external Kafka Broker"),
    ]


def test_go_subtests_are_reported_and_unfinished_ones_fail() -> None:
    lines = [
        ("start", None, ""),
        *(
            ("run", name, "")
            for name in (
                "TestETL",
                "TestETL/range",
                "TestETL/sticky",
                "TestRegex",
                "TestHangs",
                "TestSkips",
            )
        ),
        ("output", "TestETL/sticky", "    group_test.go:12: got 1 | not 2\n"),
        ("output", "TestETL/sticky", "    group_test.go:13: leaving\n"),
        ("output", "TestSkips", "    share_test.go:1: not supported\n"),
        ("pass", "TestETL/range", ""),
        ("fail", "TestETL/sticky", ""),
        ("fail", "TestETL", ""),
        ("fail", "TestRegex", ""),
        ("skip", "TestSkips", ""),
        ("fail", None, ""),
    ]
    events = [
        json.dumps({"Action": action, "Test": name, "Output": output})
        for action, name, output in lines
    ]

    assert list(GO.results(events)) == [
        Result("TestETL/range", "passed"),
        Result("TestETL/sticky", "failed", "got 1 / not 2"),
        Result("TestRegex", "out of scope", "no topic"),
        Result("TestHangs", "failed", "it did not end"),
        Result("TestSkips", "skipped", "not supported"),
    ]


def test_single_go_subtest_may_be_out_of_scope() -> None:
    suite = replace(GO, out_of_scope={"TestETL/sticky": "no sticky", "TestRegex": "no topic"})
    names = ("TestETL/range", "TestETL/sticky", "TestRegex/one")
    lines = [*(("run", name) for name in names), *(("fail", name) for name in names)]
    events = [json.dumps({"Action": action, "Test": name}) for action, name in lines]

    assert list(suite.results(events)) == [
        Result("TestETL/range", "failed"),
        Result("TestETL/sticky", "out of scope", "no sticky"),
        Result("TestRegex/one", "out of scope", "no topic"),
    ]


def test_suite_with_fixed_port_skips_if_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(Unavailable, match=f"no address but localhost:{port}, which is taken"):
            client_suites.run(replace(GO, broker=Expected(port=port)), tmp_path, "ours", None)


@pytest.mark.slow
def test_ports_of_toxiproxy_lead_to_the_broker() -> None:
    control, *ports = free_ports(3)
    try:
        with running("ours") as broker, proxies(ports, broker.address, control):
            assert {request_versions(f"127.0.0.1:{port}") for port in ports} == {
                request_versions(broker.address)
            }
    except Unavailable as error:
        unavailable(str(error))
    assert all(map(is_free, ports))


def test_only_go_tests_using_a_broker_run(tmp_path: Path) -> None:
    (tmp_path / "a_test.go").write_text("""
func TestAsks(t *testing.T) {
	cl := newClient(t)
}

func TestAlone(t *testing.T) {
	if true {
	}
}

func newClient(t *testing.T) {}
""")

    (tmp_path / "b_test.go").write_text("func TestOther(t *testing.T) {\n\tnewClient(t)\n}\n")

    assert GO.broker_tests(tmp_path) == ["TestAsks", "TestOther"]
    assert replace(GO, files="b_*.go").broker_tests(tmp_path) == ["TestOther"]


def test_page_counts_outcomes_per_broker_and_lists_ours() -> None:
    ours = [
        Result("a", "passed"),
        Result("b", "failed", "why"),
        Result("c", "out of scope", "because"),
    ]
    theirs = [Result("a", "passed"), Result("b", "failed", "there too")]

    text = page(
        {"some-client 1.0": {"ours": ours, "Kafka": theirs}}, {"another": "it is in no package"}
    )

    assert "## some-client 1.0\n" in text
    assert (
        "- On this broker: 1 failed, 1 out of scope, 1 passed.\n- On Kafka itself: 1 failed, 1 "
        "passed.\n" in text
    )
    assert "| failed | why |\n|---|---|\n| `b` | why |" in text
    assert "| failed on Kafka | why |\n|---|---|\n| `b` | there too |" in text
    assert text.endswith("- another: it is in no package.\n")


def test_unpackaged_suite_needs_a_checkout(tmp_path: Path) -> None:
    suite = PythonSuite(
        "pytest",
        "tests/integration",
        {},
        {},
        {"tests/more.py": "NUMBER = 1"},
        needs_checkout="not here",
    )
    checkout = tmp_path / "checkout"
    (checkout / "tests" / "integration").mkdir(parents=True)
    (checkout / "src").mkdir()

    with pytest.raises(Unavailable, match="not here"):
        suite.fetch(tmp_path)
    source = suite.fetch(tmp_path / "here", checkout)

    assert (source / "tests" / "more.py").read_text() == "NUMBER = 1" and (
        source / "tests" / "integration"
    ).is_dir()
    assert not (source / "src").exists()  # the installed client is asked
    assert not (checkout / "tests" / "more.py").exists()


@pytest.mark.slow
def test_confluent_kafka_checkout_runs_on_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = tmp_path / "tests" / "integration"
    tests.mkdir(parents=True)
    (tests / "test_metadata.py").write_text("""\
import os
from confluent_kafka.admin import AdminClient
from trivup.clusters.KafkaCluster import KafkaCluster

def test_it_answers():
    admin = AdminClient({"bootstrap.servers": os.environ["BROKERS"], "log_level": 0})
    assert admin.list_topics(timeout=30).topics == {}

def test_it_is_another_one():
    assert os.environ["BROKERS"] == ""
""")

    (tests / "test_broken.py").write_text("import nothing_that_is_installed\n")
    (tests / "schema_registry").mkdir()
    (tests / "schema_registry" / "test_registry.py").write_text(
        "import nothing_that_is_installed\n"
    )

    assert client_suites.main(["confluent-kafka", "--checkout", f"confluent-kafka={tmp_path}"]) == 1

    said = capsys.readouterr().out
    assert "- On this broker: 2 failed, 1 passed." in said
    assert "`tests.integration.test_broken`" in said and "registry" not in said
    assert "failed: test_it_is_another_one: AssertionError: assert '127.0.0.1:" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["kafka-js"],
            "there is no suite kafka-js: choose of kafka-python, franz-go, kafka-go, sarama, "
            "confluent-kafka",
        ),
        (["--checkout", "aiokafka=."], "there is no suite aiokafka"),
        (
            ["--checkout", "confluent-kafka=nowhere"],
            "--checkout confluent-kafka=nowhere: there is no such folder",
        ),
    ],
)
def test_unknown_suites_and_folders_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        client_suites.main(arguments)

    assert complaint in capsys.readouterr().err
