// Sliders for a study's config move its closed forms at once; "run it" solves, and the result appears here.

import { RunData, get, post } from "./api.js";
import { clear, colour, h, number, say, select, svg } from "./dom.js";
import { TimePlot } from "./plots.js";
import { share } from "./share.js";
import { Scale, named } from "./time.js";

export async function show(place, query, { remember, live }) {
  const studies = await get("/api/studies");
  const study = studies.find((s) => s.study === query.get("study")) ?? studies.find((s) => s.study === "focus-dilution") ?? studies[0];
  const given = {};
  const like = query.get("like") ? (await get("/api/run", { id: query.get("like") }).catch(() => null)) : null;
  for (const key of study.keys) {
    if (query.has(`k.${key.name}`)) { try { given[key.name] = JSON.parse(query.get(`k.${key.name}`)); } catch { /* not ours */ } }
    else if (like?.study === study.study && key.name in like.differs) given[key.name] = like.differs[key.name];
  }
  const value = (key) => given[key.name] ?? key.default;
  let told = null, timer = 0, polling = 0, result = null;
  const fault = h("p", { class: "error", role: "alert", hidden: true });
  const line = h("div", {}), table = h("dl", { class: "facts" }), words = h("p", { class: "soft" });
  const spot = h("div", { class: "plot tall" }), legend = h("ul", { class: "legend" });
  const progress = h("div", { "aria-live": "polite" });
  const plot = new TimePlot(spot, { label: "predicted and solved loss over time" });

  function set(key, v) {
    if (JSON.stringify(v) === JSON.stringify(key.default)) delete given[key.name]; else given[key.name] = v;
    remember({ [`k.${key.name}`]: key.name in given ? JSON.stringify(v) : null, like: null });
    clearTimeout(timer);
    timer = setTimeout(predict, 60);
  }
  let asked = 0, busy = false;
  async function predict() {
    asked++;
    if (busy) return;  // the newest question is asked when the last answer is here
    busy = true;
    const mine = asked;
    try {
      const answer = await post("/api/predict", { study: study.study, config: given });
      if (!live()) return;
      told = answer;
      fault.hidden = true;
      draw();
    } catch (error) { fault.textContent = error.message; fault.hidden = false; }
    finally { busy = false; }
    if (asked !== mine && live()) predict();
  }
  async function draw() {
    const times = Object.entries(told.times).filter(([, t]) => t !== null);
    clear(line, times.length ? timeline(times, result ? named(result.facts.stages).filter((s) => s.cycle === 1) : []) : null);
    clear(table, [...times.map(([k, t]) => [`time of ${k}`, t]), ...Object.entries(told.rates).map(([k, v]) => [`rate of ${k}`, v]), ...Object.entries(told.numbers)].map(([k, v]) => [h("dt", {}, k.replaceAll("_", " ")), h("dd", {}, number(v, 6))]));
    words.textContent = told.sentence;
    const series = [], curves = told.curves;
    let last = Math.max(1e-9, ...times.map(([, t]) => t));
    if (curves?.loss) series.push({ name: "loss, predicted (reduced flow)", time: Float64Array.from(curves.time), values: curves.loss, dash: "dash", colour: colour(1) });
    else if (curves) for (const [name, v] of Object.entries(curves)) if (name !== "time" && typeof v[0] === "number") series.push({ name: `${name}, predicted`, time: Float64Array.from(curves.time), values: v, dash: "dash", colour: colour(series.length + 1) });
    if (curves) last = Math.max(last, curves.time.at(-1));
    if (result?.facts.rows && result.variable("loss")) { series.unshift({ name: "loss, solved", time: result.time, values: (await result.column("loss")).data, colour: colour(0) }); last = Math.max(last, result.time.at(-1)); }
    spot.hidden = !series.length;
    if (series.length) await plot.draw(new Scale("log", last), null, series, { stages: times.map(([name, time]) => ({ name, time })) });
    clear(legend, series.map((s) => h("li", {}, h("span", { class: "swatch", style: { background: s.colour } }), ` ${s.name}`)));
    document.documentElement.dataset.predicted = String(asked);
  }
  async function start() {
    try { const job = await post("/api/start", { study: study.study, config: given }); follow(job.id); }
    catch (error) { say(error.message); }
  }
  function follow(id) {
    clearTimeout(polling);
    const look = async () => {
      if (!live()) return;
      const all = await get("/api/runs").catch(() => ({ runs: [], jobs: [] }));
      const there = all.runs.some((r) => r.id === id && r.kind === "run");
      const now = there ? await get("/api/run", { id }).catch(() => null) : null;
      const job = now?.job ?? all.jobs.find((j) => j.id === id);
      if (now?.rows && now.rows !== result?.facts.rows) { result = await RunData.open(id).catch(() => result); if (told) draw(); }
      const until = now?.config?.until, share_ = until && job?.time ? Math.min(1, job.time / until) : null;
      const running = job?.running;
      clear(progress, h("p", {}, running ? "Solving " : now?.finished ? "Solved: " : "Stopped: ", h("a", { href: `#/run?id=${encodeURIComponent(id)}` }, id), now ? ` (${now.sentence || now.status})` : "", !running && job?.said ? ` ${job.said}` : ""),
        running ? [h("progress", { max: 1, value: share_ ?? undefined, "aria-label": "progress of the solve" }), " ", h("button", { type: "button", onclick: async () => { await post("/api/cancel", { id }).catch((e) => say(e.message)); look(); } }, "Cancel")] : null,
        !running && now && !now.finished ? h("button", { type: "button", onclick: async () => { try { await post("/api/resume", { id }); look(); } catch (e) { say(e.message); } } }, "Resume") : null);
      document.documentElement.dataset.solved = now?.finished ? id : "";
      if (running || (now && !now.finished && now.status === "running")) polling = setTimeout(look, 700);
    };
    look();
  }
  const main = study.keys.filter((k) => k.head), rest = study.keys.filter((k) => !k.head);
  clear(place, h("h1", {}, `What if: ${study.study}`), h("p", { class: "lead" }, study.title),
    h("div", { class: "bar" }, select("Study", studies.map((s) => [s.study, s.study]), study.study, (v) => { location.hash = `#/whatif?study=${encodeURIComponent(v)}`; }),
      h("button", { type: "button", class: "main", onclick: start }, "Run it"), h("button", { type: "button", onclick: () => { location.hash = `#/whatif?study=${encodeURIComponent(study.study)}&again=${Date.now() % 1e6}`; } }, "Back to the defaults")),
    fault, progress,
    h("div", { class: "panels" },
      h("section", { class: "panel", "aria-label": "Parameters" }, h("h2", {}, "Parameters"), h("div", { class: "controls" }, main.map((k) => control(k, value(k), (v) => set(k, v)))),
        rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), h("div", { class: "controls" }, rest.map((k) => control(k, value(k), (v) => set(k, v))))) : null),
      h("section", { class: "panel wide", "aria-label": "Predictions" }, h("h2", {}, "What closed forms predict"), line, spot, legend, words, table)),
    share({
      python: () => told?.python ?? "", command: () => told?.command ?? "",
      downloads: [["Predictions (CSV)", () => `data:text/csv;charset=utf-8,${encodeURIComponent(csv(told))}`]],
    }));
  place.addEventListener("shown", predict, { once: true });
  return () => { clearTimeout(timer); clearTimeout(polling); };
}

function csv(told) {
  const rows = [["name", "value"], ...Object.entries(told?.times ?? {}), ...Object.entries(told?.rates ?? {}).map(([k, v]) => [`rate of ${k}`, v]), ...Object.entries(told?.numbers ?? {})];
  return rows.map(([k, v]) => `"${String(k).replaceAll('"', '""')}",${v ?? ""}`).join("\n");
}

/** The predicted times on a line, and below it those of the solved run. */
function timeline(times, measured) {
  const all = [...times.map(([, t]) => t), ...measured.map((s) => s.time)].filter((t) => t > 0);
  if (!all.length) return null;
  const low = Math.log(Math.min(...all)) - 0.25, high = Math.log(Math.max(...all)) + 0.35;
  const x = (t) => 20 + 860 * (Math.log(Math.max(t, 1e-300)) - low) / (high - low);
  const levels = [];
  const room = (at, wide) => { let k = 0; while (levels[k] !== undefined && levels[k] > at - wide / 2) k++; levels[k] = at + wide / 2 + 8; return k; };
  const marks = [...times].filter(([, t]) => t > 0).sort((a, b) => a[1] - b[1]).map(([name, t]) => {
    const text = `${name} ${number(t, 4)}`, at = Math.min(Math.max(x(t), 4 + 3.1 * text.length), 896 - 3.1 * text.length), k = room(at, 6.2 * text.length);
    return [at, x(t), k, text];
  });
  const top = 16 * Math.max(1, levels.length), base = top + 14;
  const below = measured.map((s) => [x(s.time), s.label]);
  return svg("svg", { class: "frame roomy", viewBox: `0 0 900 ${base + (below.length ? 34 : 10)}`, role: "img", "aria-label": "predicted times of the stages: " + marks.map((m) => m[3]).join(", ") },
    svg("path", { d: `M10 ${base}H890`, stroke: "#1b1f24", "stroke-width": 2 }),
    marks.map(([at, true_, k, text]) => [svg("path", { d: `M${true_} ${base}V${top - 16 * k - 2}`, stroke: "#d55e00", "stroke-dasharray": "3 2" }), svg("text", { x: at, y: top - 16 * k - 5, "text-anchor": "middle" }, text)]),
    below.map(([at], k) => svg("path", { d: `M${at} ${base}v9`, stroke: "#0072b2", "stroke-width": 3 })),
    below.length ? svg("text", { x: 12, y: base + 26 }, "dashed: predicted; blue ticks: stages of the solved run") : null);
}

/** The control of one key: slider and number, choice, list with a slider per entry, or text. */
function control(key, start, change) {
  const name = `key-${key.name}`;
  const doc = h("p", { class: "doc", id: `${name}-doc` }, key.doc);
  const label = h("label", { for: name }, key.name);
  const about = { id: name, "aria-describedby": `${name}-doc` };
  if (key.control === "choice") {
    const box = h("select", about, key.options.map((o) => h("option", { value: o, selected: o === start }, o)));
    box.addEventListener("change", () => change(box.value));
    return h("div", { class: "control" }, label, h("br", {}), box, doc);
  }
  if (key.control === "number" || key.control === "whole") {
    const whole = key.control === "whole", text = typeof start !== "number" || (key.words ?? []).length > 0;
    const centre = typeof start === "number" && start > 0 ? start : typeof key.default === "number" && key.default > 0 ? key.default : 1;
    const bounded = !whole && centre < 1 && key.default > 0.02 && key.default < 1;
    const box = h("input", { ...about, type: text ? "text" : "number", step: "any", value: start });
    const range = h("input", { type: "range", min: 0, max: 1000, "aria-label": `${key.name}, slider` });
    const ends = bounded ? [0.001, 0.999] : [centre / 100, centre * 100];
    const to = (share) => { const v = bounded ? ends[0] + share * (ends[1] - ends[0]) : ends[0] * (ends[1] / ends[0]) ** share; return whole ? Math.max(key.default === 0 ? 0 : 1, Math.round(v)) : Number(v.toPrecision(4)); };
    const from = (v) => (bounded ? (v - ends[0]) / (ends[1] - ends[0]) : Math.log(Math.max(v, 1e-300) / ends[0]) / Math.log(ends[1] / ends[0]));
    range.value = typeof start === "number" ? Math.round(1000 * Math.max(0, Math.min(1, from(start)))) : 500;
    range.addEventListener("input", () => { box.value = to(range.value / 1000); change(Number(box.value)); });
    box.addEventListener("input", () => { const v = Number(box.value); if (box.value !== "" && Number.isFinite(v)) { range.value = Math.round(1000 * Math.max(0, Math.min(1, from(v)))); change(v); } else if (box.value !== "") change(box.value); });
    return h("div", { class: "control" }, label, h("div", { class: "row" }, range, box), doc);
  }
  if (key.control === "list" && Array.isArray(start) && start.length && start.every((v) => typeof v === "number")) {
    // A law sums to one: moving one entry rescales the others.
    const values = [...start], law = Math.abs(values.reduce((a, b) => a + b, 0) - 1) < 1e-9;
    const box = h("input", { ...about, type: "text", value: values.join(", ") });
    const sliders = values.map((v, k) => h("input", { type: "range", min: 1, max: 999, value: Math.round(1000 * v), "aria-label": `${key.name}, entry ${k + 1}` }));
    sliders.forEach((slider, k) => slider.addEventListener("input", () => {
      const to = slider.value / 1000, others = values.reduce((a, b) => a + b, 0) - values[k];
      if (law) values.forEach((v, i) => { values[i] = i === k ? to : others > 0 ? v * (1 - to) / others : (1 - to) / (values.length - 1); });
      else values[k] = to;
      if (law) { values.forEach((v, i) => { values[i] = Number(v.toFixed(6)); }); values[k === 0 ? values.length - 1 : 0] += 1 - values.reduce((a, b) => a + b, 0); }
      sliders.forEach((s, i) => { if (i !== k) s.value = Math.round(1000 * values[i]); });
      box.value = values.map((v) => number(v, 6)).join(", ");
      change([...values]);
    }));
    box.addEventListener("change", () => { const found = box.value.split(",").map(Number); if (found.length && found.every(Number.isFinite)) { if (found.length === values.length) { found.forEach((v, i) => { values[i] = v; sliders[i].value = Math.round(1000 * v); }); } change(found); } });
    return h("div", { class: "control" }, label, box, sliders.map((s) => h("div", {}, s)), doc);
  }
  const box = h("input", { ...about, type: "text", value: Array.isArray(start) ? start.join(", ") : String(start) });
  box.addEventListener("change", () => change(box.value));
  return h("div", { class: "control" }, label, h("br", {}), box, doc);
}
