// All runs: what differs, how it went, headline numbers and a small loss curve.

import { get, link } from "./api.js";
import { brief, clear, h, number, select, svg } from "./dom.js";
import { share, word } from "./share.js";

const COLUMNS = [["name", "run"], ["study", "study"], ["status", "status"], ["updated", "updated"]];

export const statusClass = (run) => (run.finished ? "good" : run.status === "running" ? "live" : "bad");

export async function show(place, query, { remember, live }) {
  let { runs, folder } = await get("/api/runs");
  const chosen = new Set((query.get("runs") ?? "").split(",").filter(Boolean));
  const state = { text: query.get("text") ?? "", study: query.get("study") ?? "", sort: query.get("sort") ?? "updated", down: query.get("down") !== "0" };
  const body = h("tbody", {});
  const told = h("p", { class: "soft", "aria-live": "polite" });
  const compare = h("button", { type: "button", class: "main", onclick: go }, "Compare");
  const sparks = new Map();

  function go() {
    const list = [...chosen].map(encodeURIComponent).join(",");
    location.hash = `#/compare?runs=${encodeURIComponent(list)}`;
  }
  const matches = (r) => (!state.study || r.study === state.study)
    && state.text.toLowerCase().split(/\s+/).every((w) => JSON.stringify([r.name, r.study, r.status, r.config ?? {}]).toLowerCase().includes(w));

  function fill() {
    const key = (r) => String(r[state.sort] ?? "");
    const found = runs.filter(matches).sort((a, b) => (state.down ? -1 : 1) * key(a).localeCompare(key(b), "en", { numeric: true }));
    clear(body, found.map(line));
    told.textContent = `${found.length} of ${runs.length} in ${folder}`;
    for (const [name, button] of heads) button.parentElement.setAttribute("aria-sort", name === state.sort ? (state.down ? "descending" : "ascending") : "none");
    mark();
    draw(found);
  }
  function mark() {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "Compare (choose two or more)" : `Compare ${chosen.size}`;
    remember({ runs: [...chosen].join(","), text: state.text, study: state.study, sort: state.sort, down: state.down ? null : "0" });
  }
  function line(r) {
    const address = r.study === "corpus-stats" ? `#/stores?id=${encodeURIComponent(r.id)}` : r.kind === "ensemble" ? `#/sweep?id=${encodeURIComponent(r.id)}` : `#/run?id=${encodeURIComponent(r.id)}`;
    const box = r.kind === "run" ? h("input", { type: "checkbox", checked: chosen.has(r.id), "aria-label": `choose ${r.name}` }) : null;
    box?.addEventListener("change", () => { if (box.checked) chosen.add(r.id); else chosen.delete(r.id); mark(); });
    const config = Object.entries(r.config ?? {}).map(([k, v]) => `${k}=${brief(v)}`).join("  ");
    const numbers = Object.entries(r.numbers ?? {}).map(([k, v]) => `${k} ${number(v, 4)}`).join(" · ");
    const spark = h("td", { class: "curve" });
    sparks.set(r.id, spark);
    return h("tr", {},
      h("td", { class: "pick" }, box),
      h("td", { class: "name" }, r.kind === "broken" ? r.name : h("a", { href: address }, r.name)),
      h("td", {}, r.study, r.kind === "ensemble" ? h("small", {}, " (sweep)") : null),
      h("td", {}, h("span", { class: `status ${statusClass(r)}`, title: r.sentence }, r.status)),
      h("td", { class: "soft" }, (r.updated || r.created).replace("T", " ").slice(0, 16)),
      h("td", { class: "config" }, config || (r.kind === "run" ? "default" : r.sentence)),
      h("td", { class: "numbers" }, numbers),
      spark);
  }
  async function draw(found) {
    for (const r of found.filter((f) => f.kind === "run").slice(0, 60)) {
      if (!live()) return;
      try {
        const points = await get("/api/spark", { id: r.id });
        if (points.length > 1) sparks.get(r.id)?.replaceChildren(curve(points, r.name), h("small", {}, `to ${number(points.at(-1)[1], 4)}`));
      } catch { /* a run that is gone, or damaged, has no curve */ }
    }
  }

  const heads = COLUMNS.map(([name, words]) => [name, h("button", { type: "button", onclick: () => { state.down = state.sort === name ? !state.down : name === "updated"; state.sort = name; fill(); } }, words)]);
  const text = h("input", { type: "search", value: state.text, autocomplete: "off" });
  text.addEventListener("input", () => { state.text = text.value; fill(); });
  const studies = [...new Set(runs.map((r) => r.study))].filter(Boolean).sort();
  clear(place,
    h("h1", {}, "Runs"),
    h("div", { class: "bar" },
      h("label", {}, "Filter", text),
      select("Study", [["", "all"], ...studies.map((s) => [s, s])], state.study, (v) => { state.study = v; fill(); }),
      compare),
    told,
    runs.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of runs" },
      h("table", { class: "runs" },
        h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "soft" }, "pick")), heads.map(([, b]) => h("th", { scope: "col" }, b)), h("th", { scope: "col" }, "differs from the default in"), h("th", { scope: "col" }, "numbers"), h("th", { scope: "col" }, "loss, log time"))),
        body))
      : h("p", {}, "There are no runs in this folder yet: ", h("code", {}, "attnflow run focus-dilution"), " makes one, or ", h("a", { href: "#/whatif" }, "run one from here"), "."),
    share({
      python: () => `from attnflow.runs import list_runs\n\nruns = list_runs(${JSON.stringify(folder)})`,
      command: () => `attnflow runs ${word(folder)}`,
      downloads: [["Download CSV", () => link("/api/runs.csv")]],
    }));
  fill();
  const timer = setInterval(async () => {
    if (document.hidden || !runs.some((r) => r.status === "running")) return;
    try { ({ runs } = await get("/api/runs")); if (live()) fill(); } catch { /* next time */ }
  }, 3000);
  return () => clearInterval(timer);
}

function curve(points, name) {
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const text = points.map(([x, y]) => `${(2 + 116 * (x - x0) / (x1 - x0 || 1)).toFixed(1)},${(32 - 28 * (y - y0) / (y1 - y0 || 1)).toFixed(1)}`).join(" ");
  return svg("svg", { class: "spark", viewBox: "0 0 120 35", role: "img", "aria-label": `loss of ${name}: ${number(ys[0], 4)} to ${number(ys.at(-1), 4)}` }, svg("polyline", { points: text }));
}
