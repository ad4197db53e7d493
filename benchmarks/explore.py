"""The explorer through Chromium: how long until a view is there, and until a scrub is on screen.

The default run of focus-dilution (t = 3000, dim 16), served from disk by a process of its own. A
scrub moves the time cursor to a random row and ends with the second frame after it: every panel
has then been drawn and shown.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attnflow import walk
from benchmarks._tables import Result, Table, Target

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update")

SCRUB = """async (share) => {
  const range = document.querySelector(".timebar input[type=range]");
  const begin = performance.now();
  range.value = Math.round(share * Number(range.max));
  range.dispatchEvent(new Event("input"));
  const told = performance.now();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [told - begin, performance.now() - begin];
}"""

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
DRAWN = "document.documentElement.dataset.drawn !== undefined"


def run(quick: bool = False) -> Result:
    """First paint and all panels of the run's view, and the time of a scrub."""
    result = Result("explore", __doc__ or "")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        walk.run("focus-dilution", out=folder / "default", claims=False, report=False)
        command = [sys.executable, "-m", "attnflow.cli", "explore", str(folder), "--json"]
        command += ["--no-browser", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            visits = _visits(_told(server)["url"], 2 if quick else 5, 30 if quick else 200)
        finally:
            server.terminate()
            server.wait()
    rows = [
        {"visit": k + 1, **{n: v for n, v in visit.items() if n != "scrubs"}}
        for k, visit in enumerate(visits)
    ]
    scrubs = [each for visit in visits for each in visit["scrubs"]]
    work, shown = (sorted(s[k] for s in scrubs) for k in (0, 1))
    median, high = statistics.median(shown), shown[int(0.95 * (len(shown) - 1))]
    paint = statistics.median(visit["first paint"] for visit in visits)
    columns = {"visit": "d", "first paint": ".0f", "all panels": ".0f"}
    result.tables.append(Table("a run's view, milliseconds", columns, rows))
    line = {
        "scrubs": len(scrubs),
        "drawing": statistics.median(work),
        "on screen": median,
        "95 %": high,
    }
    columns = {"scrubs": "d", "drawing": ".3g", "on screen": ".3g", "95 %": ".3g"}
    result.tables.append(Table("a scrub, milliseconds (median)", columns, [line]))
    result.targets += [
        Target("scrub at the median (ms)", "< 100", median, median < 100),
        Target("first paint at the median (ms)", "< 2000", paint, paint < 2000),
    ]
    return result


def _told(server: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON object that the server prints when it listens."""
    assert server.stdout is not None
    text = ""
    for line in server.stdout:
        text += line
        if line.startswith("}"):
            return json.loads(text)
    raise RuntimeError("the explorer ended before it listened")


def _visits(url: str, count: int, scrubs: int) -> list[dict[str, Any]]:
    """Views of the run, each in a browser profile of its own."""
    from playwright.sync_api import sync_playwright

    path = next(p for name in ("chromium", "chromium-browser") if (p := shutil.which(name)))
    found = []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        for _ in range(count):
            context = opened.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto(f"{url}#/run?id=default", wait_until="commit")
            page.wait_for_url("**/#/run**")
            page.wait_for_load_state("load")
            while not page.evaluate(DRAWN):
                page.wait_for_timeout(10)
            drawn = page.evaluate("performance.now()")
            shares = [(0.618034 * k) % 1 for k in range(scrubs)]
            times = [page.evaluate(SCRUB, share) for share in shares]
            found.append(
                {"first paint": page.evaluate(PAINT), "all panels": drawn, "scrubs": times}
            )
            context.close()
        opened.close()
    return found
