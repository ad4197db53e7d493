"""Every view in Chromium, wide and narrow: no complaint, nothing leaves, by keyboard too."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from attnflow.flows.sinks import Segment, Shape
from attnflow.runs import DiskSink, RunFolder, new_manifest, open_run
from conftest import EVIL
from report.browser import Visit, _keep

pytestmark = pytest.mark.browser

HOSTILE = "x'\"><img src=x onerror=alert(1)>"

VIEWS = {
    "runs": "#/runs",
    "run": "#/run?id=flow-0",
    "adam": "#/run?id=adam&scale=steps",
    "live": "#/run?id=live",
    "compare": "#/compare?runs=flow-0,flow-1,adam",
    "map": "#/sweep?id=map&show=times.focus",
    "line": "#/sweep?id=line&show=loss",
    "ledger": f"#/ledger?id={quote(HOSTILE)}",
    "whatif": "#/whatif?study=two-mixture",
    "text": "#/stores?id=text",
    "series": "#/stores?id=series",
    "hostile": f"#/run?id={quote(HOSTILE)}",
}


@contextmanager
def at(chrome: Any, server: Any, address: str, width: int = 1280) -> Iterator[Visit]:
    """A view, opened by the launch link in a window of that width."""
    context = chrome.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    seen = Visit(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: _keep(seen, message))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    try:
        launch(page, server, address)
        yield seen
    finally:
        context.close()


def launch(page: Any, server: Any, address: str) -> None:
    """Opens the launch link with the address of a view behind it, and waits for the view."""
    page.goto(server.url + address, wait_until="commit")
    page.wait_for_url(f"{server.address}/#/**")
    page.wait_for_load_state("load")
    shown(page, address)


def until(page: Any, what: str, seconds: float = 60) -> None:
    """Waits for an expression; playwright's own waiting would evaluate text inside the page, and
    the policy forbids that."""
    end = time.monotonic() + seconds
    while not page.evaluate(what):
        assert time.monotonic() < end, f"waited in vain for {what}"
        page.wait_for_timeout(40)


def shown(page: Any, address: str) -> None:
    name = address.split("?")[0].removeprefix("#/")
    until(page, f"document.documentElement.dataset.shown === {json.dumps(name)}")
    if name in ("run", "compare", "sweep", "stores"):
        until(page, "document.documentElement.dataset.drawn !== undefined")
    if name == "whatif":
        until(page, "document.documentElement.dataset.predicted !== undefined")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", VIEWS)
def test_each_view(chrome, server, name, width):
    with at(chrome, server, VIEWS[name], width) as seen:
        page = seen.page
        assert page.title() != "owned"
        assert page.locator("main h1").count() == 1
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], "the page scrolls sideways"
        found = Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []
        assert seen.complaints == []
        local = (server.address, "data:,", "blob:")
        assert [url for url in seen.requests if not url.startswith(local)] == []


def test_words_of_a_run_never_become_elements(chrome, server):
    for address in (
        VIEWS["text"],
        VIEWS["hostile"],
        VIEWS["ledger"],
        "#/runs",
        f"#/compare?runs={quote(quote(HOSTILE))}",
    ):
        with at(chrome, server, address) as seen:
            page = seen.page
            page.wait_for_timeout(300)
            assert page.locator("main img").count() == 0
            assert page.locator("main a[href*='example.org']").count() == 0
            assert EVIL in page.inner_text("main") or HOSTILE in page.inner_text("main")
            assert page.title() != "owned"
            assert seen.complaints == []


def test_a_formula_is_typeset_and_a_claim_has_its_snippet_and_figure(chrome, server):
    with at(chrome, server, VIEWS["ledger"]) as seen:
        page = seen.page
        assert page.locator("main math mfrac").count() >= 2
        page.locator("details.claim").first.locator("summary").click()
        page.wait_for_selector("details.claim a[href*='/api/figure']")
        first = page.locator("details.claim").first
        # "Thm" stands for every theorem, "Thm 0" for that one; a figure that is not there is none.
        assert first.locator("a[href*='/api/figure']").all_inner_texts() == ["loss", "other"]
        second = page.locator("details.claim").nth(1)
        second.locator("summary").click()
        second.locator("a[href*='/api/figure']").wait_for()
        assert second.locator("a[href*='/api/figure']").all_inner_texts() == ["other"]
        page.get_by_label("Search").fill("nothing like it")
        assert "0 of 2" in page.inner_text("main")
        page.get_by_label("Search").fill("")
        page.get_by_label("Verdict", exact=False).first.select_option("consistent")
        assert "1 of 2" in page.inner_text("main")
        page.get_by_label("Grouped by").select_option("verdict")
        assert page.locator("main section h2").count() == 1


def test_one_cursor_moves_everything_and_says_the_truth(chrome, server, folder):
    run = open_run(folder / "flow-0")
    data = run.trajectory
    focus = next(s.time for s in run.stages if s.name == "focus")
    row = int(np.abs(data["time"].values - focus).argmin())
    with at(chrome, server, f"{VIEWS['run']}&t={focus}") as seen:
        page = seen.page
        until(page, f"document.documentElement.dataset.row === '{row}'")
        texts = page.locator("section[aria-label='Attention and other maps'] svg rect + text")
        seen_map = [float(t) for t in texts.all_text_contents()]
        want = data["attention"].values[row].ravel()
        assert np.allclose(seen_map, want, atol=0.0051)
        assert f"{data['loss'].values[row]:.4g}"[:5] in page.inner_text(".timebar output")
        # By keyboard alone: a row, ten rows, a stage, the ends, and play.
        page.locator(".timebar input[type=range]").focus()
        page.keyboard.press("ArrowRight")
        until(page, f"document.documentElement.dataset.row === '{row + 1}'")
        page.keyboard.press("Shift+ArrowLeft")
        until(page, f"document.documentElement.dataset.row === '{row - 9}'")
        page.keyboard.press("]")
        until(page, f"document.documentElement.dataset.row === '{row}'")
        page.keyboard.press("Home")
        until(page, "document.documentElement.dataset.row === '0'")
        page.keyboard.press("End")
        last = data.sizes["time"] - 1
        until(page, f"document.documentElement.dataset.row === '{last}'")
        page.keyboard.press("Space")
        until(page, "Number(document.documentElement.dataset.row) > 3")
        page.keyboard.press("Space")
        assert page.get_by_role("button", name="Play").count() == 1
        # A saddle takes the cursor there and tells of itself.
        saddle = run.saddles.records()[0]
        page.get_by_role("region", name="Table of saddles").get_by_role("button").first.click()
        at_saddle = int(np.abs(data["time"].values - saddle["time"]).argmin())
        until(page, f"document.documentElement.dataset.row === '{at_saddle}'")
        assert saddle["blocks"] in page.inner_text(
            "section[aria-label='Saddles: where it waits'], section.saddles"
        )
        # The address has the state.
        page.wait_for_timeout(400)
        assert "t=" in page.url
        assert seen.complaints == []


def test_time_can_be_even_between_stages(chrome, server, folder):
    run = open_run(folder / "flow-0")
    with at(chrome, server, f"{VIEWS['run']}&scale=stage") as seen:
        page = seen.page
        stages = sorted({s.time for s in run.stages if s.time > 0})
        middle = page.evaluate(
            """async (stages) => {
                const { Scale } = await import("/static/time.js");
                const given = { stages: stages.times.map((time) => ({ time })) };
                const scale = new Scale("stage", stages.last, given);
                return stages.times.map((t) => [scale.at(t), scale.time(scale.at(t))]);
            }""",
            {"times": stages, "last": float(run.trajectory["time"].values[-1])},
        )
        assert [m[0] for m in middle] == [k + 1 for k in range(len(stages))]
        assert np.allclose([m[1] for m in middle], stages)


def test_runs_align_by_stage(chrome, server, folder):
    first, second = (open_run(folder / name) for name in ("flow-0", "flow-1"))
    focus = [next(s.time for s in r.stages if s.name == "focus") for r in (first, second)]
    address = f"#/compare?runs=flow-0,flow-1&align=stage&t={focus[0]}"
    with at(chrome, server, address) as seen:
        page = seen.page
        until(page, "document.querySelector('.legend').textContent.match(/at t =/g)?.length === 2")
        lines = page.locator(".legend li").all_inner_texts()
        times = [float(line.rpartition("t = ")[2]) for line in lines]
        rows = [r.trajectory["time"].values for r in (first, second)]
        gaps = [np.diff(t)[np.searchsorted(t, f) - 1] for t, f in zip(rows, focus, strict=True)]
        assert abs(times[0] - focus[0]) <= gaps[0]
        assert abs(times[1] - focus[1]) <= gaps[1] + gaps[0]


def test_a_cell_of_a_sweep_opens_its_run_by_keyboard(chrome, server):
    with at(chrome, server, VIEWS["line"]) as seen:
        page = seen.page
        page.locator("summary", has_text="Cells").focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="open the run of cell 1").focus()
        page.keyboard.press("Enter")
        until(page, "document.documentElement.dataset.shown === 'run'")
        assert "omega=0.2" in page.inner_text("main")
        assert seen.complaints == []


def test_sliders_move_predictions_and_run_it_shows_the_result_in_place(chrome, server, folder):
    with at(chrome, server, "#/whatif?study=focus-dilution&k.dim=2&k.until=6") as seen:
        page = seen.page
        name = page.locator("dt", has_text="rate of focus").first
        before = float(name.locator("xpath=following-sibling::dd[1]").inner_text())
        page.get_by_label("lam", exact=True).fill("0.4")
        near = f"Math.abs(Number(d.nextElementSibling.textContent) / {before / 2} - 1) < 1e-4"
        named = "d.textContent === 'rate of focus'"
        # eq. (14): the rate is proportional to lam
        until(page, f"[...document.querySelectorAll('dt')].some((d) => {named} && {near})")
        page.get_by_role("button", name="Run it").click()
        until(page, "document.documentElement.dataset.solved", 200)
        run = open_run(folder / page.evaluate("document.documentElement.dataset.solved"))
        assert run.finished
        assert (run.config["lam"], run.config["dim"], run.config["until"]) == (0.4, 2, 6.0)
        until(page, "document.querySelector('.legend').textContent.includes('solved')")
        page.get_by_label("lam", exact=True).fill("1.5")
        page.wait_for_selector("p.error:not([hidden])")
        assert "lam" in page.inner_text("p.error")
        assert [c for c in seen.complaints if "400" not in c] == []  # the refusal itself is said


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A page of somebody else, on another port of this machine."""

    page = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *words: Any) -> None:
        pass


ATTACK = Path(__file__).with_name("attack.html")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_hostile_page_in_another_tab_gets_nothing(chrome, server, host):
    """Another site (localhost), and another port of the very same address, cookie and all."""
    with at(chrome, server, "#/runs") as seen:
        other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
        _Elsewhere.page = ATTACK.read_text().replace("TARGET", server.address).encode()
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        jobs = server.jobs.told()
        try:
            tab = seen.page.context.new_page()
            tab.goto(f"http://{host}:{other.server_address[1]}/")
            until(tab, "window.found !== undefined")
            found = dict(tab.evaluate("window.found"))
        finally:
            other.shutdown()
            other.server_close()
        assert found.pop("frame") in ("closed", "", "refused")
        assert found.pop("post blind") in ("sent", "refused")
        assert found.pop("read blind") in ("empty", "refused")
        assert set(found.values()) == {"refused"}
        assert server.jobs.told() == jobs


def test_copy_and_download_give_what_is_shown(chrome, server, folder):
    context = chrome.new_context(
        viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    try:
        launch(page, server, VIEWS["run"] + "&t=50")
        page.locator("[data-copy=python]").click()
        until(page, "document.getElementById('said').textContent.includes('copied')")
        code = page.evaluate("navigator.clipboard.readText()")
        names: dict[str, Any] = {}
        *lines, last = code.splitlines()
        exec("\n".join(lines), names)
        now = eval(last, names)
        t = names["run"].trajectory["time"].values
        assert float(now["time"]) == t[np.abs(t - 50).argmin()]
        page.locator("[data-copy=command]").click()
        assert page.evaluate("navigator.clipboard.readText()").startswith("attnflow show ")
        with page.expect_download() as info:
            page.get_by_role("link", name="netCDF of everything").click()
        import xarray as xr

        got = xr.load_dataset(info.value.path(), engine="scipy")
        assert np.array_equal(got["attention"].values, names["run"].trajectory["attention"].values)
    finally:
        context.close()


def test_a_run_that_is_being_written_has_stages_and_gets_more(chrome, server, folder):
    """Written in two pieces: after the first the stages up to there are shown, then the rest."""
    whole = open_run(folder / "flow-0")
    data, config = whole.trajectory, dict(whole.manifest["config"])
    cut = int(np.searchsorted(data["time"].values, 100.0))
    columns = {"time": data["time"], **data.data_vars}
    dims = {name: each.dims[1:] for name, each in columns.items()}
    axes = {d: data[d].values for d in data.coords if d in data.dims and d != "time"}
    with RunFolder.create(folder / "growing", new_manifest("focus-dilution", config)) as growing:
        sink = DiskSink(growing)
        sink.begin(Shape(dims, axes, {}))
        sink.flush(Segment({n: v.values[:cut] for n, v in columns.items()}, ()))
        with at(chrome, server, "#/run?id=growing") as seen:
            page = seen.page
            early = [s for s in whole.stages if s.time < 100.0]
            assert 0 < len(early) < len(whole.stages)
            until(page, f"document.documentElement.dataset.stages === '{len(early)}'")
            sink.flush(Segment({n: v.values[cut:] for n, v in columns.items()}, ()))
            until(page, f"document.documentElement.dataset.stages === '{len(whole.stages)}'")
            page.locator(".timebar input[type=range]").focus()
            page.keyboard.press("End")
            until(page, f"document.documentElement.dataset.row === '{data.sizes['time'] - 1}'")
            last = whole.stages[-1]
            assert page.locator(f".flags [aria-label^='go to {last.name}']").count() == 1
            assert f"loss {data['loss'].values[-1]:.3g}"[:8] in page.inner_text(".timebar output")
            assert seen.complaints == []
