"""The page in a real browser: it opens from the disk, complains of nothing, and its choices, zoom
and timeout work."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import oracle
import pytest
from journals import START, check, operation, random_operations, write
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from purgatory.pipeline._command_line import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest_plugins = ["browser"]
ROWS = random_operations(random.Random(13), 3000)
RUNS = {row["run_id"] for row in ROWS}
MICROSECOND = timedelta(microseconds=1)
SIZES = {"desk": (1280, 900), "tablet": (768, 1024), "phone": (390, 844)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two purgatories, three kinds, three runs, and a key that would end the page's own
    script."""
    folder = tmp_path_factory.mktemp("report")
    rows = [dict(row) for row in ROWS]
    rows[0] |= {"keys": ['</script><script>alert("x")</script>'], "missed_trigger": True}
    rows += [
        operation(
            10_000 + number, run_id="fine", kind="Forgotten", keys=["forgotten"], timeout_s=0.2, missed_trigger=True,
            started_at=START + timedelta(seconds=number), ended_at=START + timedelta(seconds=number + 0.2),
        )
        for number in range(20)
    ]  # fmt: skip
    write(folder / "journal", "operations", "x", rows)
    write(
        folder / "journal",
        "checks",
        "x",
        [check(s, key=f"key-{s % 9}", run_id="fine") for s in range(60)],
    )
    assert main(["report", str(folder / "journal"), "--out", str(folder)]) == 0
    assert (folder / "report.html").stat().st_size < 5_000_000
    return folder / "report.html"


@pytest.fixture
def sized(browser: Chrome, request: pytest.FixtureRequest) -> Iterator[Chrome]:
    """Chromium, of the size that the test asks for."""
    width, height = SIZES[getattr(request, "param", "desk")]
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield browser
    assert browser.get_log("browser") == []
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def opened(browser: Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(browser, 60).until(lambda chrome: chrome.execute_script(ready))
    draw(browser, "ends")


def draw(browser: Chrome, place: str) -> None:
    """A picture is drawn when it comes into sight."""
    browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", place)
    drawn: Any = lambda chrome: chrome.find_elements(By.CSS_SELECTOR, f"#{place} .main-svg")  # noqa: E731
    WebDriverWait(browser, 60).until(drawn)


def choose(browser: Chrome, **values: str) -> None:
    for name, value in values.items():
        Select(browser.find_element(By.ID, name)).select_by_visible_text(value)


def tiles(browser: Chrome) -> dict[str, str]:
    script = "return [...document.querySelectorAll('#tiles div')].map(tile => ['span', 'b'].map(name => tile.querySelector(name).textContent))"
    return dict(browser.execute_script(script))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def cells(browser: Chrome, section: str) -> list[list[str]]:
    script = "return [...document.querySelectorAll(arguments[0])].map(row => [...row.cells].map(cell => cell.textContent))"
    rows: list[list[str]] = browser.execute_script(script, f"#{section} tbody tr")
    return rows


@pytest.mark.parametrize("sized", SIZES, indirect=True)
def test_page_fits_every_size_without_errors(sized, report):
    opened(sized, report)

    assert sized.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    if sized.execute_script("return innerWidth") != SIZES["tablet"][0]:
        cut = "return [...document.querySelectorAll('.table')].filter(each => each.scrollWidth > each.clientWidth)"
        assert sized.execute_script(cut) == []
    for picture in sized.find_elements(By.CSS_SELECTOR, ".picture"):
        place = picture.get_attribute("id") or ""
        draw(sized, place)
        assert picture.find_element(By.CSS_SELECTOR, ".main-svg").size["width"] <= SIZES["desk"][0]


def test_filters_apply_to_the_whole_page(sized, report):
    opened(sized, report)
    assert number(tiles(sized)["started"]) > 2900 and len(cells(sized, "timeouts")) == 7

    assert "`" not in sized.find_element(By.TAG_NAME, "body").text

    choose(sized, purgatory="letters", kind="Forgotten")
    answer = sized.find_element(By.ID, "answer").text
    assert answer == "Forgotten: not answerable, every one completed by the try at its deadline."
    assert [row[-3:] for row in cells(sized, "timeouts")] == [["not answerable"] * 3]

    choose(sized, kind="all")
    names = [{row[0] for row in cells(sized, section)} for section in ("timeouts", "keys")]
    assert names == [{"letters"}] * 2
    choose(sized, kind="Join")
    [of_all_runs] = cells(sized, "timeouts")
    choose(sized, run="fine")
    [of_fine] = cells(sized, "timeouts")
    assert int(of_fine[2]) < int(of_all_runs[2])
    assert tiles(sized)["completed"] == of_fine[3]


def test_checks_are_drawn_by_the_second_and_zoomed(sized, report):
    opened(sized, report)
    draw(sized, "heat")
    width, z, title = sized.execute_script(
        "const [map] = document.getElementById('heat').data;"
        "return [data.window.width, map.z, map.colorbar.title.text]"
    )
    assert width == 500 and title == "tried in 1 s"
    counts = [[cell for cell in row if cell] for row in z]
    # 60 checks of 3 tries each, one key after the other
    assert counts == [[3] * len(row) for row in counts] and sum(map(len, counts)) == 60
    before = tiles(sized)
    assert sum(int(row[3]) for row in cells(sized, "keys")) == 180

    script = """
        const from = data.window.start + 20000, text = time => new Date(time).toISOString().slice(0, 23);
        return Plotly.relayout("ends", {"xaxis.range[0]": text(from), "xaxis.range[1]": text(from + 20000)}).then(() => 0);
    """
    sized.execute_script(script)

    assert number(tiles(sized)["started"]) < number(before["started"]) / 2
    assert sum(int(row[3]) for row in cells(sized, "keys")) < 180
    sized.find_element(By.ID, "whole").click()
    assert tiles(sized) == before


def test_waits_and_curve_follow_zoom_and_are_labelled(sized, report):
    opened(sized, report)
    rows = [row for row in ROWS if (row["purgatory"], row["kind"]) == ("letters", "Join")]
    last = {
        run: max(filter(None, (row["ended_at"] for row in ROWS if row["run_id"] == run)))
        for run in RUNS
    }
    script = """
        choose({from: arguments[0], to: arguments[1], purgatory: "letters", kind: "Join"});
        const group = data.groups.findIndex(each => each[0] === "letters" && each[1] === "Join");
        const said = [...document.querySelectorAll(".covers")].map(each => each.textContent);
        const drawn = [...waitSteps().values()].reduce((sum, each) => sum + each.completed + each.others, 0);
        return [curve(group), said, drawn, data.window.start + arguments[0] * data.window.width,
                data.window.start + arguments[1] * data.window.width, data.waits.width];
    """
    for first, end in ((20, 60), (100, 101)):
        points, said, drawn, since, until, width = sized.execute_script(script, first, end)

        assert width == 1
        began = [(row, row["started_at"]) for row in rows if row["started_at"]]
        mine = [row for row, at in began if since <= at.timestamp() * 1000 < until]
        assert drawn == sum(row["ended_at"] is not None for row in mine) > 0
        expected = oracle.curve(
            (oracle.step_of(((row["ended_at"] or last[row["run_id"]]) - row["started_at"]) // MICROSECOND),
             row["outcome"] == "completed")
            for row in mine
        )  # fmt: skip
        assert points["at_risk"] == [at_risk for _, at_risk, _, _ in expected]
        rates = [float(rate) for _, _, rate, _ in expected]
        assert points["expiry_rate"] == pytest.approx(rates, abs=1e-9)
        assert points["standard_error"] == [
            error and pytest.approx(error) for *_, error in expected
        ]
        steps = [[step, step + 1] for step, *_ in expected]
        bounds = [sized.execute_script("return arguments[0].map(edgeOf)", step) for step in steps]
        assert points["timeout_s"] == [upper for _, upper in bounds]
        assert all(lower < upper for lower, upper in bounds)
        assert len(said) == 2
        assert all(
            each.startswith("Of the operations that began from 2026-03-01 ") for each in said
        )
    sized.find_element(By.ID, "whole").click()
    assert {each.text for each in sized.find_elements(By.CSS_SELECTOR, ".covers")} == {""}


def test_plain_journal_answers_zero_without_empty_sections(sized, tmp_path):
    rows = [
        operation(number, timeout_s=2.0, ended_at=START + timedelta(seconds=1 + number / 20))
        for number in range(20)
    ]
    rows[-1] |= {"outcome": "cancelled", "ended_by": "cancelled"}
    write(tmp_path / "journal", "operations", "x", rows)
    main(["report", str(tmp_path / "journal"), "--out", str(tmp_path)])

    opened(sized, tmp_path / "report.html")

    assert sized.find_element(By.ID, "answer").text == "Poll: 0 % would expire (95 %: 0 % to 0 %)."
    shown = [each.text for each in sized.find_elements(By.TAG_NAME, "h2") if each.is_displayed()]
    assert shown == ["Over time", "Timeouts", "Journals read"]
    assert "Nothing" not in sized.find_element(By.TAG_NAME, "body").text


def test_paper_is_light_and_pictures_have_its_width(sized, report):
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    sized.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
    opened(sized, report)
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert sized.execute_script(ground) == "rgb(22, 24, 28)"

    sized.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    size = {"width": 703, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    sized.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    sized.execute_script("dispatchEvent(new Event('beforeprint'))")
    places = (
        "return ['ends', 'waits', 'survival'].map(id => {"
        "const box = document.querySelector(`#${id} .main-svg`).getBoundingClientRect();"
        "return [box.left, box.right]})"
    )
    ends, waits, survival = sized.execute_script(places)

    assert sized.execute_script(ground) == "rgb(255, 255, 255)"
    assert ends[1] - ends[0] == 700
    assert waits[0] == ends[0] and waits[1] <= survival[0] and survival[1] > 690
    sized.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_names_with_markup_are_shown_as_text(sized, tmp_path):
    link = '<a href="https://evil.example/">look</a>'
    rows = [
        operation(number, purgatory=f"{link}{number % 2}", kind=f"<b>{link}", keys=[link])
        for number in range(40)
    ]
    rows[0] |= {"missed_trigger": True}
    write(tmp_path / "journal", "operations", "x", rows)
    checks = [check(s, purgatory=f"{link}{s % 2}", key=link) for s in range(9)]
    write(tmp_path / "journal", "checks", "x", checks)
    main(["report", str(tmp_path / "journal"), "--out", str(tmp_path)])

    opened(sized, tmp_path / "report.html")
    drawn = "return document.querySelectorAll('.picture .main-svg').length >= 9"
    WebDriverWait(sized, 30).until(lambda chrome: chrome.execute_script(drawn))

    links = (
        "return [...document.querySelectorAll('a')]"
        ".map(each => each.getAttribute('href') || each.getAttribute('xlink:href'))"
    )
    assert [each for each in sized.execute_script(links) if not each.startswith("#")] == []
    legends = "return [...document.querySelectorAll('.legendtext')].map(each => each.textContent)"
    assert f"{link}1: most" in sized.execute_script(legends)
