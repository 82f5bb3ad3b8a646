"""One pass through Spark: each program once, on one session. The other modules of this folder are
slow."""

import re
from html import unescape

import pytest
from journals import table
from streams import NOON, decided, happens, late, put, run, waits

from purgatory.pipeline._command_line import main
from purgatory.pipeline.streaming import ShardsChanged, check_shards, reconcile


def test_report_finds_planted_faults_and_opens_offline(programs_on_spark, tmp_path, capsys):
    journal, out = str(tmp_path / "journal"), tmp_path / "out"

    assert main(["synth", "--operations", "20000", "--out", journal]) == 0
    assert main(["report", journal, "--out", str(out), "--master", "local[2]"]) == 0

    content = (out / "report.html").read_text("utf-8")
    text = unescape(re.sub(r"(<script[^>]*>).*?</script>", r"\1", content, flags=re.DOTALL))
    assert all(
        each.startswith(("data:", "#")) for each in re.findall(r'(?:src|href)="(.*?)"', text)
    )
    printed = " ".join(capsys.readouterr().out.split())
    for said in (
        "Of 'Join' in 'synth'",
        "not answerable from this data",
        "check_and_complete was not called for 'forgotten' in 'synth'",
        "The hottest key is 'key-0' in 'synth'",
        "operations were pending in 'synth'",
    ):
        assert said in text and said in printed
    assert "Of 'Fetch'" not in text and "Of 'Produce'" not in text
    assert [row.key for row in table(out, "keys") if row.missed_triggers > 0] == ["forgotten"]


def test_late_rows_have_reasons_and_counts_add_up(spark, tmp_path):
    # No pattern; Spark does not find its state by itself.
    checkpoint = tmp_path / "a[1] {x,y}*? 100 %"
    options = ("--format=json", f"--checkpoint={checkpoint}")
    tmp_path /= "100 %"
    tmp_path.mkdir()
    paid, unpaid = waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y")
    put(tmp_path, "operations", paid, unpaid, waits("patient", 1, 500, "y"))
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    assert run(spark, tmp_path, *options) == 0
    assert [row[:2] for row in decided(spark, tmp_path)] == [
        ("paid", "completed"),
        ("unpaid", "expired"),
    ]

    tardy, patient = waits("tardy", 2, 50, "x"), waits("patient", 100, 600, "x")
    put(tmp_path, "operations", tardy, patient, {"operation_id": "broken"})
    put(tmp_path, "signals", happens("y", 30), happens("z", 160))
    assert run(spark, tmp_path, *options) == 0

    words = {"broken": "lacks", "patient": "copy", "tardy": "deadline", "y": "watermark"}
    reasons = late(spark, tmp_path)
    assert [name for name, _ in reasons] == [*words]
    assert all(words[name] in reason for name, reason in reasons)
    ((_, outcome, at, keys),) = [row for row in decided(spark, tmp_path) if row[0] == "patient"]
    # when the late signal was received
    assert (outcome, at // 1_000_000, keys) == ("completed", NOON + 60, ("y",))
    account = reconcile(str(checkpoint), spark)
    assert (account.registered, account.completed, account.expired, account.late) == (6, 2, 1, 3)
    assert (account.pending, account.missing, account.late_signals) == (0, 0, 1)

    with pytest.raises(ShardsChanged, match=r"4 shards.*written with 2"):
        run(spark, tmp_path, *options, "--shards", "4")
    check_shards(spark, str(checkpoint), 2)
