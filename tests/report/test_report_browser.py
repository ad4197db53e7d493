"""The pages in Chromium, at a desk's and at a telephone's width."""

from __future__ import annotations

import pytest

from attnflow.report import ensemble_page, page

from .browser import visit

pytestmark = pytest.mark.browser

KINDS = ["run", "sweep", "fragment"]


@pytest.fixture(scope="module")
def files(tmp_path_factory, outcome, scan):
    folder = tmp_path_factory.mktemp("pages")
    long = "attnflow run focus-dilution --set pi=" + ",".join(["0.0625"] * 16)
    texts = {
        "run": page(outcome).replace(outcome.command, long),
        "sweep": ensemble_page(scan),
        "fragment": f'<!doctype html><meta charset="utf-8"><body>{outcome._repr_html_()}',
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_page_asks_nothing_complains_of_nothing_and_fits(opened, files, kind, width):
    with visit(opened, files[kind], width) as seen:
        sizes = seen.page.evaluate(
            "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert sizes[0] <= sizes[1]
        outside = seen.page.evaluate(
            """() => [...document.querySelectorAll('h1, h2, p, pre, svg, figcaption, .verdict')]
                .filter(e => !e.closest('.scroll, .attnflow') && e.checkVisibility())
                .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
                .map(e => e.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        boxes = seen.page.evaluate(
            """() => [...document.querySelectorAll('svg')].filter(e => e.checkVisibility())
                .map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"""
        )
        shown = {"run": files["run"].read_text("utf-8").count('class="drawing"')}
        assert len(boxes) == (shown | {"sweep": 3, "fragment": 1})[kind]
        assert all(w > 200 and h > 100 for w, h in boxes)
        assert seen.requests == [files[kind].as_uri()]
        assert seen.complaints == []


def test_text_in_figures_is_readable_on_a_telephone(opened, files):
    with visit(opened, files["run"], 400) as seen:
        heights = seen.page.evaluate(
            """() => [...document.querySelectorAll('svg text')]
                .map(e => parseFloat(getComputedStyle(e).fontSize)
                     * e.ownerSVGElement.getScreenCTM().a)"""
        )
        assert min(heights) >= 7


def test_copy_button_copies_the_command(opened, files):
    with visit(opened, files["run"]) as seen:
        button = seen.page.locator("button[data-copy=command]")
        assert button.is_hidden()  # the command is folded
        seen.page.locator("#again > summary").click(position={"x": 5, "y": 5})
        button.click()
        seen.page.wait_for_function(
            "() => document.querySelector('[data-copy=command]').textContent !== 'Copy'"
        )
        assert button.text_content() in ("Copied", "Selected")
        assert seen.complaints == []


def test_without_script_the_button_is_hidden_and_the_command_is_there(opened, files):
    context = opened.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(files["run"].as_uri())
    tab.locator("#again > summary").click(position={"x": 5, "y": 5})
    assert tab.locator("button[data-copy=command]").is_hidden()
    assert "attnflow run focus-dilution" in tab.locator("#command").inner_text()
    context.close()


SHOWN = "() => [...document.querySelectorAll('.claim')].filter(e => e.checkVisibility()).length"


@pytest.mark.parametrize("width", [1280, 400])
def test_claims_are_filtered_by_verdict_kind_and_text(opened, files, ledger, width):
    with visit(opened, files["run"], width) as seen:
        page, form = seen.page, seen.page.locator("form.filter")

        def shown() -> int:
            return page.evaluate(SHOWN)

        assert shown() == len(ledger)
        page.locator(".counts a[data-verdict=fails]").click()
        page.wait_for_function(f"() => ({SHOWN})() === 2")
        assert form.locator("output").text_content() == f"2 of {len(ledger)}"
        assert not page.locator("h3", has_text="Ours").is_visible()
        form.locator("button[type=reset]").click()
        page.wait_for_function(f"() => ({SHOWN})() === {len(ledger)}")
        form.locator("[name=whose]").select_option("ours")
        assert shown() == 1
        form.locator("[name=whose]").select_option("")
        form.locator("[name=strength]").select_option("exact")
        assert shown() == 1
        form.locator("[name=strength]").select_option("")
        form.locator("[name=text]").fill("Surprise  STATEMENT")
        assert shown() == 1
        form.locator("[name=text]").press("Enter")  # sends nothing anywhere
        assert shown() == 1
        assert seen.requests == [files["run"].as_uri()]
        assert seen.complaints == []


@pytest.mark.parametrize("width", [1280, 400])
def test_a_link_opens_its_row_also_where_a_filter_hides_it(opened, files, width):
    with visit(opened, files["run"], width) as seen:
        row = seen.page.locator("#claim-prop-holds-corrected-statement")
        seen.page.locator("[name=whose]").select_option("ours")
        assert row.is_hidden()
        seen.page.locator(".errata a").first.click()
        row.locator(".sides").wait_for()
        assert "W0' = -GM W1^T - GP W0 W_QK^T" in row.inner_text()
        seen.page.locator("[data-open]").click()
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert seen.page.evaluate(wide) == 0
        box = row.locator(".sides p", has_text="or").bounding_box()
        assert box["x"] + box["width"] <= width
        assert seen.page.evaluate("location.hash") == "#claim-prop-holds-corrected-statement"
        assert seen.complaints == []


def test_a_row_opens_and_closes_by_keyboard(opened, files):
    with visit(opened, files["run"]) as seen:
        row = seen.page.locator("#claim-prop-fails-statement")
        row.locator("> summary").focus()
        seen.page.keyboard.press("Enter")
        assert row.locator(".inside").is_visible()
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "permalink"
        row.locator("> summary").focus()
        seen.page.keyboard.press("Space")
        assert row.locator(".inside").is_hidden()


def test_print_opens_what_fails_and_folds_the_rest(opened, files):
    with visit(opened, files["run"]) as seen:
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        opened_ = "() => [...document.querySelectorAll('.claim[open]')].map(e => e.dataset.verdict)"
        assert seen.page.evaluate(opened_) == ["fails", "fails"]
        seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert seen.page.evaluate(opened_) == []


def test_without_script_every_row_is_there(opened, files, ledger):
    context = opened.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(files["run"].as_uri())
    rows = tab.locator(".claim > summary")
    assert rows.count() == len(ledger)
    assert all(rows.nth(i).is_visible() for i in range(len(ledger)))
    assert tab.locator("form.filter").is_hidden()
    rows.first.click()
    assert tab.locator(".claim .inside").first.is_visible()
    context.close()
