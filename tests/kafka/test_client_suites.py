"""How what a suite says is told: what fails is told apart from what is out of scope."""

from xml.etree import ElementTree as ET

from client_suites import Result, page, results

REPORT = """<testsuites><testsuite name="pytest">
<testcase name="test_group" time="1.0"/>
<testcase name="test_end_to_end[zstd]"><failure message="assert 1 == 2&#10;  | + 1">trace</failure></testcase>
<testcase name="test_elect_leaders"><failure message="socket disconnected">trace</failure></testcase>
<testcase name="test_ssl_handshake"><error message="failed on setup">trace</error></testcase>
<testcase name="test_admin[PLAIN]"><skipped message="Testing on external Kafka Broker">where</skipped></testcase>
</testsuite></testsuites>"""


def test_each_test_of_a_report_has_one_outcome_and_its_reason() -> None:
    assert list(results(ET.ElementTree(ET.fromstring(REPORT)))) == [
        Result("test_group", "passed"),
        Result("test_end_to_end[zstd]", "failed", "assert 1 == 2 / + 1"),
        Result("test_elect_leaders", "out of scope", "there is one node with one disk"),
        Result("test_ssl_handshake", "out of scope", "connections are plain"),
        Result("test_admin[PLAIN]", "skipped", "Testing on external Kafka Broker"),
    ]


def test_the_page_counts_outcomes_for_each_broker_and_lists_those_of_ours() -> None:
    ours = [Result("a", "passed"), Result("b", "failed", "why"), Result("c", "out of scope", "because")]
    text = page({"some-client": {"ours": ours, "Kafka": [Result("a", "passed")]}})

    assert "- On this broker: 1 failed, 1 out of scope, 1 passed.\n- On Kafka itself: 1 passed." in text
    assert "| failed | why |\n|---|---|\n| `b` | why |" in text and "Passed: `a`." in text
    assert "aiokafka: its source distribution has no tests" in text
