// Two or more runs on one cursor, aligned by time or by stage.

import { RunData, get, link } from "./api.js";
import { Cursor } from "./cursor.js";
import { brief, clear, colour, h, number, select } from "./dom.js";
import { MatrixFrame } from "./frames.js";
import { TimePlot, plotly } from "./plots.js";
import { quoted, share, word } from "./share.js";
import { Scale, named } from "./time.js";

const MOST = 8;

export async function show(place, query, { remember }) {
  const ids = (query.get("runs") ?? "").split(",").map(decodeURIComponent).filter(Boolean).slice(0, MOST);
  const all = (await get("/api/runs")).runs.filter((r) => r.kind === "run");
  const again = (list) => { location.hash = `#/compare?runs=${encodeURIComponent(list.map(encodeURIComponent).join(","))}`; };
  const rest = all.filter((r) => !ids.includes(r.id));
  const adder = rest.length && ids.length < MOST ? select("Add a run", [["", "choose …"], ...rest.map((r) => [r.id, r.name])], "", (v) => v && again([...ids, v])) : null;
  if (ids.length < 1) {
    clear(place, h("h1", {}, "Compare"), h("p", {}, "Choose runs in ", h("a", { href: "#/runs" }, "the list"), " or here."), adder);
    return null;
  }
  plotly();
  const opened = await Promise.all(ids.map((id) => RunData.open(id)));
  const runs = opened.filter((r) => r.facts.rows);
  const stages = runs.map((r) => named(r.facts.stages));
  const key = (s) => `${s.name}|${s.cycle}`;
  // The stages that all runs have, in the order of the first: what an alignment by stage goes by.
  const shared = (stages[0] ?? []).filter((s, k, list) => list.findIndex((x) => key(x) === key(s)) === k && stages.every((other) => other.some((x) => key(x) === key(s))));
  const inOrder = shared.filter((s, k) => k === 0 || stages.every((other) => at(other, s) > at(other, shared[k - 1])));
  function at(list, s) { return list.find((x) => key(x) === key(s)).time; }
  const state = { align: query.get("align") === "stage" && inOrder.length ? "stage" : "time", scale: query.get("scale") === "linear" ? "linear" : "log", name: query.get("show") ?? "loss" };

  const common = runs[0]?.facts.variables.filter((v) => v.dims.length <= 2 && runs.every((r) => r.variable(v.name)?.dims.join() === v.dims.join())) ?? [];
  const names = common.map((v) => v.name);
  if (!names.includes(state.name)) state.name = names.includes("loss") ? "loss" : names[0];
  const mapped = runs[0]?.facts.variables.filter((v) => v.dims.length === 3 && v.name !== "embedding" && runs.every((r) => r.variable(v.name))).map((v) => v.name) ?? [];
  const map = mapped.find((n) => n.includes("attention")) ?? mapped[0];

  const last = Math.max(...runs.map((r) => r.time.at(-1)));
  // By stage, the cursor runs over the first run's time, and each other run is at the same stage.
  const scales = () => runs.map((r, k) => (state.align === "stage"
    ? new Scale("stage", r.time.at(-1), { stages: inOrder.map((s) => ({ ...s, time: at(stages[k], s) })) })
    : new Scale(state.scale, last)));
  const spot = h("div", { class: "plot tall" });
  const legend = h("ul", { class: "legend" });
  const cards = h("div", { class: "cards" });
  const frames = [];
  let laid = scales(), series = [], entry = Number(query.get("entry") ?? 0);
  const times = state.align === "stage" ? runs[0]?.time : merged(runs, last);
  const cursor = runs.length ? new Cursor({
    time: times, stages: stages[0], describe: (row) => (state.align === "stage" ? `stage ${number(laid[0].at(times[row]), 4)}, t = ${number(times[row], 5)} in the first` : `t = ${number(times[row], 5)}`),
    onMove: (row, t) => { move(t); remember({ t: number(t, 6) }); },
  }) : null;
  const plot = new TimePlot(spot, { onPick: (t) => cursor.to(t), label: "runs over time" });

  function rows(t) { return runs.map((r, k) => r.row(state.align === "stage" ? laid[k].time(laid[0].at(t)) : Math.min(t, r.time.at(-1)))); }
  function move(t) {
    plot.move(t);
    rows(t).forEach((row, k) => {
      frames[k]?.(row);
      if (items[k] && series[k]) items[k].textContent = `${number(series[k].values[row], 5)} at t = ${number(runs[k].time[row], 5)}`;
    });
  }
  const items = runs.map(() => h("span", {}));
  async function lay() {
    laid = scales();
    cursor.lay(laid[0]);
    const about = runs[0].variable(state.name);
    const columns = await Promise.all(runs.map((r) => r.column(state.name)));
    series = runs.map((r, k) => {
      const { data, shape } = columns[k], width = shape[1] ?? 1, values = new Float64Array(shape[0]);
      for (let t = 0; t < shape[0]; t++) values[t] = data[t * width + Math.min(entry, width - 1)];
      return { name: r.facts.name, values, time: r.time, colour: colour(k) };
    });
    // Each run is laid by its own scale; the plot gets places, so the identity scale draws them.
    const drawn = series.map((s, k) => ({ ...s, time: Float64Array.from(s.time, (t) => laid[k].at(t)) }));
    const base = laid[0];
    const identity = { at: (x) => x, axis: base.axis };
    await plot.draw(identity, null, drawn, { unit: about.units, log: about.name !== "loss" && about.dims.length === 2 });
    plot.scale = base;
    cursor.set(cursor.row);
  }
  clear(legend, runs.map((r, k) => h("li", {}, h("span", { class: "swatch", style: { background: colour(k) } }), " ", h("a", { href: `#/run?id=${encodeURIComponent(r.facts.id)}` }, r.facts.name), " ", items[k])));
  if (map) {
    clear(cards, runs.map((r, k) => {
      const inner = h("div", {});
      const card = h("section", { class: "card", "aria-label": `${map} of ${r.facts.name}` }, h("h2", {}, h("span", { class: "swatch", style: { background: colour(k) } }), " ", r.facts.name), inner);
      const about = r.variable(map), [a, b] = about.dims.slice(1);
      if (about.whole) r.column(map).then(({ data }) => {
        const frame = new MatrixFrame(inner, `${map} of ${r.facts.name} at the cursor`), size = about.shape[1] * about.shape[2];
        frame.setup(r.labels(a), r.labels(b), a, b, about.units === "probability" ? [0, 1] : [Math.min(...data.slice(-size)), Math.max(...data.slice(-size))]);
        frames[k] = (row) => frame.update(data.subarray(row * size, (row + 1) * size));
        frames[k](rows(times[cursor.row])[k]);
      });
      return card;
    }));
  }
  const entries = () => (runs[0]?.variable(state.name)?.dims[1] ? runs[0].labels(runs[0].variable(state.name).dims[1]) : []);
  const choice = h("span", {});
  const chooseEntry = () => clear(choice, entries().length > 1 ? select("Entry", entries().map((l, k) => [k, l]), entry, (v) => { entry = Number(v); remember({ entry: v }); lay(); }) : null);
  chooseEntry();
  const keys = [...new Set(runs.flatMap((r) => Object.keys(r.facts.config)))].filter((k) => new Set(runs.map((r) => JSON.stringify(r.facts.config[k]))).size > 1);
  const numbers = [...new Set(runs.flatMap((r) => r.facts.summary.map(([n]) => n)))].map((n) => [n, runs.map((r) => r.facts.summary.find(([m]) => m === n)?.[1] ?? null)])
    .filter(([, v]) => v.every((x) => x === null || typeof x === "number") && new Set(v).size > 1).slice(0, 60);
  const table = (caption, lines) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "name"), runs.map((r) => h("th", { scope: "col" }, r.facts.name)))),
    h("tbody", {}, lines.map(([n, v]) => h("tr", {}, h("th", { scope: "row" }, n), v.map((x) => h("td", {}, x)))))));

  clear(place, h("h1", {}, `Compare ${runs.length} run${runs.length === 1 ? "" : "s"}`),
    h("div", { class: "bar" },
      names.length ? select("Shown", names.map((n) => [n, n.replaceAll("_", " ")]), state.name, (v) => { state.name = v; entry = 0; remember({ show: v, entry: null }); chooseEntry(); lay(); }) : null, choice,
      select("Aligned by", inOrder.length ? [["time", "time"], ["stage", `stage (${inOrder.length} shared)`]] : [["time", "time (no stage is shared)"]], state.align, (v) => { remember({ align: v }); location.hash = `#/compare?${new URLSearchParams({ runs: ids.map(encodeURIComponent).join(","), align: v, show: state.name, scale: state.scale })}`; }),
      state.align === "time" ? select("Time axis", [["log", "log time"], ["linear", "linear time"]], state.scale, (v) => { state.scale = v; remember({ scale: v }); lay(); }) : null,
      adder),
    opened.length > runs.length ? h("p", { class: "notes" }, "Some of them have written nothing yet.") : null,
    cursor?.element, h("section", { class: "panel full", "aria-label": "Curves" }, spot, legend), cards,
    keys.length ? table("Configs: the keys that differ", keys.map((k) => [k, runs.map((r) => brief(r.facts.config[k] ?? "–"))])) : null,
    numbers.length ? h("details", {}, h("summary", {}, `Numbers that differ (${numbers.length})`), table("Numbers of the summaries", numbers.map(([n, v]) => [n, v.map((x) => number(x, 6))]))) : null,
    share({
      python: () => `import attnflow as af\n\nruns = [${runs.map((r) => `af.open_run(${quoted(r.facts.path)})`).join(", ")}]\n${runs.length === 2 ? "af.compare(*runs)\n" : ""}[run.trajectory[${quoted(state.name ?? "loss")}] for run in runs]`,
      command: () => runs.map((r) => `attnflow show ${word(r.facts.path)}`).join("\n"),
      downloads: runs.map((r) => [`CSV of ${r.facts.name}`, () => link("/api/download", { id: r.facts.id, names: state.name, format: "csv" })]),
    }));
  const asked = query.has("t") ? Number(query.get("t")) : NaN;
  place.addEventListener("shown", async () => {
    if (!runs.length) return;
    await lay();
    cursor.to(Number.isFinite(asked) ? asked : times.at(-1));
    document.documentElement.dataset.drawn = "compare";
  }, { once: true });
  return () => cursor?.leave();
}

function merged(runs, last) {
  const longest = runs.find((r) => r.time.at(-1) === last);
  return longest?.time ?? new Float64Array(0);
}
