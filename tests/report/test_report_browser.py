"""The pages in Chromium, at a desk's and at a telephone's width."""

from __future__ import annotations

import pytest

from attnflow.report import ensemble_page, page

from .browser import browser, visit

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


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


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
        if button.is_hidden():
            return
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
    assert tab.locator("button[data-copy=command]").is_hidden()
    assert "attnflow run focus-dilution" in tab.locator("#command").inner_text()
    context.close()
