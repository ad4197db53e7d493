// Phase diagrams: one or two parameters, coloured by any number; a cell opens its run.

import { get, link, numbers } from "./api.js";
import { clear, h, number, select } from "./dom.js";
import { draw, plain, plotly } from "./plots.js";
import { quoted, share, word } from "./share.js";

const SET = ["#dbe9f6", "#08306b", "#e69f00", "#009e73", "#cc79a7", "#999999"];

export async function show(place, query, { remember, live }) {
  const all = (await get("/api/runs")).runs.filter((r) => r.kind === "ensemble");
  const id = query.get("id") ?? all.at(-1)?.id;
  if (!id) {
    clear(place, h("h1", {}, "Sweeps"), h("p", {}, "There is no sweep here yet. ", h("code", {}, "attnflow sweep focus-dilution --over lam=0.2:0.9:8 --over init_scale=1e-5:1e-2:4:log"), " makes one."));
    return null;
  }
  plotly();
  let sweep = await get("/api/sweep", { id });
  const keys = [...sweep.keys, ...(sweep.seeds.length > 1 ? ["seed"] : [])];
  const axis = (k) => (k === "seed" ? sweep.seeds : sweep.axes[k]);
  const at = (cell, k) => (k === "seed" ? cell.seed : cell.at[sweep.keys.indexOf(k)]);
  const preferred = sweep.refined ? "label" : ["stages.focus.time", "rates.focus", "loss", "instability_margin"].find((n) => sweep.numbers.includes(n)) ?? sweep.numbers[0];
  const state = { x: query.get("x") ?? keys[0], y: query.get("y") ?? keys.find((k) => k !== keys[0] && k !== "seed") ?? "", name: query.get("show") ?? preferred, log: query.get("log") === "1" };
  if (!keys.includes(state.x)) state.x = keys[0];
  if (!keys.includes(state.y) || state.y === state.x) state.y = "";
  if (!sweep.numbers.includes(state.name) && state.name !== "status" && state.name !== "label") state.name = preferred ?? "status";
  const fixed = {};
  const spot = h("div", { class: "plot tall", role: "img", "aria-label": "phase diagram" });
  const bar = h("div", { class: "bar" }), told = h("p", { class: "soft", "aria-live": "polite" });
  const list = h("div", {});
  let values = null;

  const others = () => keys.filter((k) => k !== state.x && k !== state.y);
  const inside = (cell) => others().every((k) => k === "seed" && fixed.seed === undefined ? true : String(at(cell, k)) === String(fixed[k] ?? axis(k)[0]));

  async function load() {
    values = state.name === "status" || state.name === "label" ? null : (await numbers("/api/sweep/column", { id, name: state.name })).data;
  }
  // Words are coloured by their order.
  const words = () => [...new Set(sweep.cells.map((c) => String((state.name === "label" ? c.label : null) ?? c.status)))];
  const value = (k) => (values ? values[k] : words().indexOf(String((state.name === "label" ? sweep.cells[k].label : null) ?? sweep.cells[k].status)));

  async function paint() {
    const chosen = sweep.cells.map((c, k) => [c, k]).filter(([c]) => inside(c));
    const mean = (list) => { const good = list.filter(Number.isFinite); return good.length ? good.reduce((a, b) => a + b, 0) / good.length : null; };
    const group = new Map();
    for (const [cell, k] of chosen) {
      const key = `${at(cell, state.x)}|${state.y ? at(cell, state.y) : ""}`;
      if (!group.has(key)) group.set(key, []);
      group.get(key).push(k);
    }
    const of = (a, b) => group.get(`${a}|${b ?? ""}`) ?? [];
    const xs = axis(state.x), open = (k) => { const run = sweep.cells[k]?.run; if (run) location.hash = `#/run?id=${encodeURIComponent(run)}`; else told.textContent = `This cell has no run to open: ${sweep.cells[k]?.sentence}`; };
    const axisOf = (k) => { const v = axis(k); const even = v.every((x) => typeof x === "number" && x > 0) && v.length > 2 && Math.abs(v[1] / v[0] - v[2] / v[1]) < 1e-6 * (v[1] / v[0]) && v[1] / v[0] > 1.3; return { title: { text: plain(k) }, type: v.every((x) => typeof x === "number") ? (even ? "log" : "linear") : "category", ...(even ? { dtick: 1, exponentformat: "power" } : {}), zeroline: false }; };
    const title = { text: plain(state.name) };
    if (state.y) {
      const ys = axis(state.y);
      const z = ys.map((y) => xs.map((x) => mean(of(x, y).map(value))));
      const shown = state.log ? z.map((row) => row.map((v) => (v > 0 ? Math.log10(v) : null))) : z;
      const text = ys.map((y) => xs.map((x) => { const k = of(x, y)[0]; const c = sweep.cells[k]; return c ? plain(`${state.x} ${number(x, 5)}, ${state.y} ${number(y, 5)}: ${values ? number(mean(of(x, y).map(value)), 5) : words()[value(k)]} (${c.status})`) : ""; }));
      const all = words(), n = all.length;
      const steps = all.flatMap((_, k) => [[k / n, SET[k % SET.length]], [(k + 1) / n, SET[k % SET.length]]]);
      const coloured = values ? { colorscale: "Cividis" } : { colorscale: steps, zmin: -0.5, zmax: n - 0.5 };
      const written = values ? {} : { tickvals: all.map((_, k) => k), ticktext: all.map(plain) };
      await draw(spot, [{ type: "heatmap", x: xs, y: ys, z: shown, text, hovertemplate: "%{text}<extra></extra>", ...coloured, showscale: true, colorbar: { title: { text: plain(state.log ? `log10 ${state.name}` : state.name), side: "right" }, thickness: 14, ...written } }],
        { xaxis: axisOf(state.x), yaxis: axisOf(state.y), margin: { l: 62, r: 10, t: 10, b: 44 } },
        (e) => { const p = e.points[0]; open(of(p.x, p.y)[0]); });
    } else {
      const ks = chosen.map(([, k]) => k);
      await draw(spot, [{ type: "scatter", mode: "markers", x: ks.map((k) => at(sweep.cells[k], state.x)), y: ks.map(value), marker: { size: 9, color: "#0072b2", opacity: 0.75 }, text: ks.map((k) => plain(`${sweep.cells[k].status}${sweep.cells[k].seed === null ? "" : `, seed ${sweep.cells[k].seed}`}`)), hovertemplate: "%{x}: %{y:.5g} (%{text})<extra></extra>", customdata: ks }],
        { xaxis: axisOf(state.x), yaxis: { title, type: state.log ? "log" : "linear" }, margin: { l: 62, r: 10, t: 10, b: 44 } },
        (e) => open(e.points[0].customdata));
    }
    clear(list, table(chosen));
    told.textContent = `${chosen.length} of ${sweep.cells.length} cells${sweep.seeds.length > 1 && state.x !== "seed" && fixed.seed === undefined ? ", the mean over seeds" : ""}`;
    document.documentElement.dataset.drawn = `sweep ${state.name}`;
  }
  function table(chosen) {
    const rows = chosen.slice(0, 300);
    return h("details", {}, h("summary", {}, `Cells (${chosen.length})`), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of cells" }, h("table", {},
      h("thead", {}, h("tr", {}, keys.map((k) => h("th", { scope: "col" }, k)), ["status", state.name, "run"].map((w) => h("th", { scope: "col" }, w)))),
      h("tbody", {}, rows.map(([c, k]) => h("tr", {}, keys.map((key) => h("td", {}, number(at(c, key), 6))), h("td", { title: c.sentence }, c.status), h("td", {}, values ? number(values[k], 6) : ""), h("td", {}, c.run ? h("a", { href: `#/run?id=${encodeURIComponent(c.run)}`, "aria-label": `open the run of cell ${k}` }, "open") : "")))))));
  }
  function controls() {
    const again = async (changes) => { Object.assign(state, changes); remember({ x: state.x, y: state.y, show: state.name, log: state.log ? "1" : null }); if ("name" in changes) await load(); controls(); paint(); };
    const log = h("input", { type: "checkbox", checked: state.log });
    log.addEventListener("change", () => again({ log: log.checked }));
    clear(bar,
      select("Sweep", all.map((r) => [r.id, r.name]), id, (v) => { location.hash = `#/sweep?id=${encodeURIComponent(v)}`; }),
      select("Coloured by", [...sweep.numbers, "status", ...(sweep.refined ? ["label"] : [])].map((n) => [n, n]), state.name, (v) => again({ name: v })),
      select("Across", keys.map((k) => [k, k]), state.x, (v) => again({ x: v, y: v === state.y ? "" : state.y })),
      select("Up", [["", "the number itself"], ...keys.filter((k) => k !== state.x).map((k) => [k, k])], state.y, (v) => again({ y: v })),
      others().map((k) => select(k, [...(k === "seed" ? [["", "mean of all"]] : []), ...axis(k).map((v) => [v, number(v, 5)])], fixed[k] ?? (k === "seed" ? "" : axis(k)[0]), (v) => { fixed[k] = v === "" ? undefined : v; paint(); })),
      h("label", {}, log, " log"));
  }
  const head = h("p", { class: "lead" }, `${sweep.study}: ${sweep.status}; ${sweep.sentence}.`);
  clear(place, h("h1", {}, `Sweep ${sweep.name}`), head, sweep.refined ? h("p", { class: "soft" }, `Refined along the boundary of ${sweep.refined}: cells that were spared have neighbours that agree.`) : null,
    bar, h("section", { class: "panel full", "aria-label": "Phase diagram" }, spot, told), h("p", { class: "soft" }, "Click a cell to open its run; the table below does it by keyboard."), list,
    share({
      python: () => `import attnflow as af\nfrom attnflow.runs import open_ensemble\n\ncells = open_ensemble(${quoted(sweep.path)}).dataset()\ncells[${quoted(state.name)}]`,
      command: () => sweep.command,
      downloads: [["Download CSV", () => link("/api/sweep/download", { id, format: "csv" })], ["Download netCDF", () => link("/api/sweep/download", { id, format: "netcdf" })]],
    }));
  controls();
  place.addEventListener("shown", async () => { await load(); paint(); }, { once: true });
  const timer = sweep.status === "finished" ? null : setInterval(async () => {
    const now = await get("/api/sweep", { id }).catch(() => null);
    if (!live() || !now || now.sentence === sweep.sentence) return;
    sweep = now;
    head.textContent = `${sweep.study}: ${sweep.status}; ${sweep.sentence}.`;
    if (sweep.numbers.includes(state.name)) await load();
    controls();
    paint();
  }, 3000);
  return () => clearInterval(timer);
}
