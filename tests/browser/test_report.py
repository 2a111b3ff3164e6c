"""The report in a browser: clicking, walking with keys, choosing, on wide and narrow screens."""

import re
from dataclasses import replace
from typing import Any

import pytest

from covey.report.page.page import build
from tests.browser.conftest import Visitor
from tests.report.made_facts import FLAT, LOCAL, Facts, Shape, facts

SFEDHP = Shape(sizes=(1, 6, 60))
PLAIN = facts(
    ("sFedHP", SFEDHP),
    ("FedAvg", replace(FLAT, sizes=(1, 60))),
    ("Local", replace(LOCAL, sizes=(1, 60))),
)
METRICS = Shape(
    metrics=(("loss", False), ("auc", True), ("ece", False), ("margin", True)),
    shown="auc",
    confusion=True,
)
HOSTILE = "</script><img src=x onerror=alert(1)>"
SHAPES = {
    "flat": facts(("FedAvg", FLAT)),
    "no global model": facts(("Local", LOCAL)),
    "one device, one round": facts(("FedAvg", replace(FLAT, sizes=(1, 1), rounds=1, models=("global", "personal")))),
    "four tiers": facts(("Nested", Shape(sizes=(1, 2, 6, 36), tiers=("server", "region", "edge", "device")))),
    "five seeds": facts(("sFedHP", Shape(seeds=5)), ("FedAvg", replace(FLAT, seeds=5))),
    "regression": facts(("PerMFL", Shape(metric="rmse")), ("FedAvg", replace(FLAT, metric="rmse"))),
    "several metrics": facts(("sFedHP", METRICS), ("FedAvg", FLAT)),
    "sampled": facts(("FedAvg", Shape(sizes=(1, 4, 80), sample=10, asked=True))),
    "radio and new devices": facts(("Pruned", Shape(sizes=(1, 2, 30), radio=True, newcomers=4))),
    "no single nodes": facts(("FedAvg", Shape(sizes=(1, 9, 900), nodes=False))),
    "many edges": facts(("PerMFL", Shape(sizes=(1, 150, 900)))),
    "long and hostile names": facts(
        (HOSTILE, Shape(names=[HOSTILE + "x" * 80] * 12)), ("B" * 90, FLAT), title=HOSTILE,
    ),
}  # fmt: skip


def shown(page: Any) -> str:
    """The name of the node in the panel."""
    return str(page.locator(".detail .who").inner_text()).strip()


def fills(page: Any) -> list[str]:
    """The colours of the devices in the tree."""
    script = "all => all.map(shape => shape.getAttribute('fill'))"
    return list(page.eval_on_selector_all('[data-node^="device:"] circle:not(.halo)', script))


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def choose(page: Any, name: str, value: str) -> None:
    page.check(f"input[name={name}][value={value}]", force=True)


def test_a_click_shows_a_node(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    assert page.locator(".node").count() == 67
    page.click('[data-node="device:3"]')
    assert shown(page) == "Device 3"
    assert page.locator('[data-node="device:3"]').get_attribute("aria-selected") == "true"
    facts_of_node = page.locator(".detail .facts").inner_text()
    for word in ("personal", "edge", "global", "FedAvg", "Received", "Training examples"):
        assert word in facts_of_node
    assert page.locator(".detail svg path").count() > 3
    assert page.locator(".detail .hist div").count() == 10
    page.click('[data-node="edge:1"]')
    assert shown(page) == "Edge 1"
    assert "10 devices" in page.locator(".detail .note").first.inner_text()


def test_arrow_keys_walk_the_tree(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    page.click('[data-node="edge:1"]')
    walk = {
        "ArrowDown": "Device 10", "ArrowRight": "Device 11", "End": "Device 59", "Home": "Device 0",
        "ArrowLeft": "Device 0", "ArrowUp": "Edge 0",
    }  # fmt: skip
    for key, name in walk.items():
        page.keyboard.press(key)
        assert shown(page) == name, key
    page.keyboard.press("ArrowUp")
    assert shown(page) == "Server"
    assert page.evaluate("document.activeElement.dataset.node") == "server:0"


def test_nodes_are_coloured_three_ways(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    seen = [fills(page)]
    for kind in ("gain", "sparsity"):
        choose(page, "colour", kind)
        seen.append(fills(page))
    assert [len(colours) for colours in seen] == [60, 60, 60]
    assert len({tuple(colours) for colours in seen}) == 3
    label = page.locator('[data-node="device:5"]').get_attribute("aria-label")
    assert "non-zero weights" in label
    assert "%" in label


def test_the_theme_switches_and_is_remembered(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    light = background(page)
    colours = fills(page)
    page.click("#theme")
    assert background(page) != light
    assert fills(page) != colours
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    assert background(page) == light


def test_the_system_s_theme_is_taken(visitor: Visitor) -> None:
    page = visitor.open(PLAIN, scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_another_run_is_shown(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    for run in PLAIN["runs"]:
        page.select_option("#run", run["key"])
        assert page.locator("h1").inner_text().startswith(run["title"])
        assert page.locator(".tile .v").first.inner_text().strip()
    page.click("#runs tbody tr:first-child button")
    assert page.locator("h1").inner_text().startswith("sFedHP")
    linked = visitor.open(PLAIN, fragment="#run=run-1")
    assert linked.locator("h1").inner_text().startswith("FedAvg")


def test_devices_are_sorted_and_listed(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    page.click("#devices summary")
    page.wait_for_selector("#devices tbody tr")
    rows = page.locator("#devices tbody tr")
    assert rows.count() == 60
    head = page.locator("#devices thead").inner_text().lower()
    for word in ("personal", "edge", "global", "fedavg", "local", "bytes sent"):
        assert word in head
    accuracies = [
        float(text.split("\u00a0")[0])
        for text in page.locator("#devices tbody td:nth-child(4)").all_inner_texts()
    ]
    assert accuracies == sorted(accuracies)
    choose(page, "sort", "gain")
    page.locator("#devices svg[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    name = page.locator("#devices .tip b").inner_text().split(" · ")[0]
    page.keyboard.press("Enter")
    assert shown(page) == name.capitalize()


def test_the_table_is_saved_and_the_command_copied(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    page.click("#devices summary")
    with page.expect_download() as saved:
        page.click("#devices button.small")
    assert saved.value.suggested_filename == "run-0-devices.csv"
    lines = saved.value.path().read_text().splitlines()
    assert lines[0].startswith("device,train,test,personal,edge,global,FedAvg,Local")
    assert len(lines) == 61
    page.click(".command button")
    page.locator(".command button", has_text="Copied").wait_for()


def test_a_printed_page_is_light_and_whole(visitor: Visitor) -> None:
    page = visitor.open(PLAIN, scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("header.top").is_visible()
    width = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(width)


def test_curves_by_bytes_and_with_the_cross_hair(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    before = page.locator("#curves svg").first.inner_html()
    choose(page, "axis", "bytes")
    choose(page, "span", "full")
    page.check("input[name=worst]")
    choose(page, "bytes", "total")
    after = page.locator("#curves svg").first.inner_html()
    assert before != after
    assert "MB" in after
    assert "worst tenth" in after
    page.locator("#curves svg[tabindex]").focus()
    page.keyboard.press("ArrowLeft")
    tip = page.locator("#curves .tip")
    assert tip.is_visible()
    assert "personal" in tip.inner_text()
    page.uncheck("input[name=beside] >> nth=0")
    assert "FedAvg" not in page.locator("#curves svg").first.text_content()


def test_tab_meets_every_control_once(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    script = """(e => e.id || e.name || e.dataset.node || e.getAttribute('aria-label')
                  || e.tagName)(document.activeElement)"""
    order: list[str] = []
    while order.count("run") < 2 and len(order) < 60:
        page.keyboard.press("Tab")
        order.append(page.evaluate(script))
    for name in ("run", "theme", "axis", "colour", "sort", "bytes"):
        assert name in order
    assert sum(name.startswith("device:") for name in order) == 1


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_do_not_scroll_sideways(visitor: Visitor, width: int) -> None:
    for name, made in {"plain": PLAIN, **SHAPES}.items():
        page = visitor.open(made, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.close()
        visitor.pages.clear()


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_drawn(visitor: Visitor, name: str) -> None:
    made = SHAPES[name]
    page = visitor.open(made)
    assert page.locator("h1").inner_text().startswith(made["runs"][0]["title"])
    assert page.locator("#curves svg path").count() > 0
    assert "NaN" not in page.locator("main").inner_html()
    assert "undefined" not in page.locator("main").inner_text()
    seed = made["runs"][0]["seeds"][0]
    nodes = sum(seed["sizes"]) if "parents" in seed else 0
    assert page.locator(".node").count() == nodes


def test_seeds_are_averaged_and_one_is_chosen(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["five seeds"])
    assert "over seeds" in page.locator(".tiles").inner_text()
    assert "±" in page.locator("#runs").inner_text()
    first = fills(page)
    page.select_option("#seed", "3")
    assert fills(page) != first
    assert "Seed 3 is shown" in page.locator("#tree .note").first.inner_text()


def test_errors_are_shown_where_numbers_are_predicted(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["regression"])
    text = page.locator("main").inner_text()
    assert "RMSE" in text
    assert "accuracy" not in text.lower()
    assert page.locator(".lead").inner_text().startswith("The RMSE on test examples is")


def test_differences_have_intervals_over_devices_or_seeds(visitor: Visitor) -> None:
    ends = r"\((95 % over {}: )?([+−-][\d.]+) to ([+−-][\d.]+)(, not distinguishable)?\)"
    for shown, over in ((PLAIN, "devices"), (SHAPES["five seeds"], "seeds")):
        lead = visitor.open(shown).locator(".lead").inner_text().replace("\xa0", " ")
        found = re.findall(ends.format(over), lead)
        assert len(found) == len(shown["runs"])  # the global model and the other runs
        assert [bool(first) for first, *_ in found] == [True, *[False] * (len(found) - 1)]
        for _, low, high, unsure in found:
            numbers = [float(end.replace("−", "-")) for end in (low, high)]
            assert numbers == sorted(numbers)
            assert bool(unsure) == (numbers[0] <= 0 <= numbers[1])


def test_the_radio_and_new_devices_have_their_parts(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["radio and new devices"])
    choose(page, "axis", "seconds")
    text = page.locator("#radio").inner_text()
    for word in ("Bandwidth", "Pruning ratio", "Answer latency", "left out"):
        assert word in text
    page.click("#newcomers summary")
    assert page.locator("#newcomers tbody tr").count() == 4
    page.locator("#radio svg[tabindex]").last.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "Bandwidth" in page.locator(".detail .facts").inner_text()


def test_participation_colours_the_tree(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["sampled"])
    choose(page, "colour", "asked")
    page.click('[data-node="device:7"]')
    asked = SHAPES["sampled"]["runs"][0]["seeds"][0]["asked"]["device"][7]
    assert f"{asked} of 20 rounds" in page.locator(".detail .facts").inner_text()


def test_a_hostile_name_is_text(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["long and hostile names"])
    assert HOSTILE in page.locator("h1").inner_text()
    page.click('[data-node="device:0"]')
    assert shown(page).startswith("</script>")
    assert page.locator("img").count() == 0


def test_the_policy_stops_a_request(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    script = "fetch('https://example.org/').then(() => 'sent', () => 'stopped')"
    assert page.evaluate(script) == "stopped"
    assert any("Content Security Policy" in error for error in visitor.errors)
    visitor.errors.clear()


def test_a_thousand_devices_and_800_rounds_within_a_second(visitor: Visitor) -> None:
    big = Shape(sizes=(1, 20, 1000), rounds=800)
    made: Facts = facts(
        ("sFedHP", big),
        ("FedAvg", replace(FLAT, sizes=(1, 1000), rounds=800)),
        ("Local", replace(LOCAL, sizes=(1, 1000), rounds=800)),
    )
    assert len(build(made).encode()) < 3_000_000
    drawn = []
    for _ in range(3):
        page = visitor.open(made)
        drawn.append(page.evaluate("performance.getEntriesByName('drawn')[0].startTime"))
    assert min(drawn) < 1000, drawn


def test_what_is_shown_stays_when_the_page_is_drawn_again(visitor: Visitor) -> None:
    page = visitor.open(PLAIN)
    page.click('[data-node="device:5"]')
    page.click("#devices summary")
    page.wait_for_selector("#devices tbody tr")
    page.evaluate("scrollTo(0, 900)")
    page.select_option("#run", "run-1")
    page.wait_for_selector("#devices tbody tr")
    assert shown(page) == "Device 5"
    assert page.evaluate("scrollY") == 900
    assert page.locator("#devices tbody tr").count() == 60


def test_a_reader_chooses_the_metric(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["several metrics"])
    assert page.locator("#metric").input_value() == "auc"
    assert page.locator("#metric option").all_inner_texts() == [
        "accuracy", "loss", "AUC", "ECE", "margin",
    ]  # fmt: skip
    assert page.locator(".lead").inner_text().startswith("The AUC on test examples is ")
    auc = page.locator(".tile .v").first.inner_text()
    page.select_option("#metric", "ece")
    lead = page.locator(".lead").inner_text()
    assert lead.startswith("The ECE on test examples (less is better) is ")
    assert page.locator(".tile .v").first.inner_text() != auc
    page.locator("#metrics button", has_text="Accuracy").click()
    assert "of test examples are right" in page.locator(".lead").inner_text()
    assert page.locator("#metric").input_value() == "accuracy"


def rows_of(page: Any) -> list[list[str]]:
    """The rows of the table of devices."""
    page.click("#devices summary")
    page.locator("#devices tbody tr").first.wait_for()  # the table is made when it is opened
    rows = page.locator("#devices tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


@pytest.mark.parametrize(("metric", "sign"), [("auc", 1), ("ece", -1)])
def test_the_worst_device_is_first_whichever_way_is_better(
    visitor: Visitor, metric: str, sign: int
) -> None:
    page = visitor.open(SHAPES["several metrics"])
    page.select_option("#metric", metric)
    choose(page, "sort", "value")
    rows = rows_of(page)
    assert len(rows) == 11  # the last device has no value
    values = [sign * float(row[3]) for row in rows]
    assert values == sorted(values)
    fill = fills(page)
    assert fill[11] == "var(--panel)"
    shades = [fill[int(row[0].removeprefix("device "))] for row in rows]
    lightness = [sum(map(int, shade[4:-1].split(","))) for shade in shades]
    assert lightness == sorted(lightness, reverse=True)  # the better, the darker


def test_the_best_of_every_metric_is_bold(visitor: Visitor) -> None:
    page = visitor.open(SHAPES["several metrics"])
    rows = page.locator("#metrics tbody tr").all()
    assert len(rows) == 5
    for row in rows:
        better = row.locator("td").nth(1).inner_text()
        cells = [float(text.split()[0]) for text in row.locator("td").all_inner_texts()[2:]]
        bold = row.locator(".best").all_inner_texts()
        best = max(cells) if better == "higher" else min(cells)
        assert [float(text.split()[0]) for text in bold] == [best]


def test_the_confusion_matrix_is_that_of_the_model_chosen(visitor: Visitor) -> None:
    shown = SHAPES["several metrics"]
    page = visitor.open(shown)
    for model in ("personal", "edge"):
        choose(page, "confused", model)
        matrix = shown["runs"][0]["seeds"][0]["models"][model]["confusion"]
        rows = page.locator("#confusion tbody tr").all()
        for row, counts in zip(rows, matrix, strict=True):
            cells = row.locator("td").all_inner_texts()
            assert [int(cell) for cell in cells[:-1]] == counts


def test_regression_speaks_of_no_accuracy(visitor: Visitor) -> None:
    shape = Shape(metric="rmse", metrics=(("mae", False), ("r2", True), ("loss", False)))
    page = visitor.open(facts(("PerMFL", shape), ("FedAvg", replace(FLAT, metric="rmse"))))
    for metric in ("rmse", "mae", "r2", "loss"):
        page.select_option("#metric", metric)
        text = page.locator("main").inner_text().lower()
        assert "accuracy" not in text
        assert "points" not in text
        assert "worst tenth" not in text
