// One run: every panel on one time cursor.

import { RunData, get, link, post } from "./api.js";
import { Cursor } from "./cursor.js";
import { brief, clear, h, number, say, select } from "./dom.js";
import { CurvePanel, MatrixPanel, SaddlePanel, TrailPanel } from "./panels.js";
import { plotly } from "./plots.js";
import { quoted, share, word } from "./share.js";
import { SCALES, Scale, named } from "./time.js";
import { statusClass } from "./view_runs.js";

const RANKS = ["singular_W0", "effective_rank", "stable_rank", "singular_W1", "singular_WQ", "singular_WK"];
const NORMS = ["norm", "embedding_norm", "neuron_norm", "speed"];
const MODES = ["amplitude", "gates", "value_rate", "speed", "neuron_power"];

export async function show(place, query, { remember, live }) {
  const id = query.get("id") ?? "";
  plotly();  // begins to load while the run is read
  let run = await RunData.open(id);
  const { facts } = run;
  const head = header(run);
  if (!facts.rows) {
    clear(place, head, h("p", {}, "It has written nothing yet."), again());
    const timer = setInterval(async () => { const f = await get("/api/run", { id }).catch(() => null); if (live() && f?.rows) dispatchEvent(new Event("hashchange")); }, 1500);
    return () => clearInterval(timer);
  }
  let stages = named(facts.stages);
  const cycles = [...new Set(stages.map((s) => s.cycle))];
  // Stages follow each other ever more slowly: on a logarithmic axis they crowd at its end.
  const state = { scale: query.get("scale") ?? (stages.length > 2 ? "stage" : "log"), cycle: Number(query.get("cycle") ?? 0) };
  if (!SCALES.some(([k]) => k === state.scale) || (state.scale === "stage" && !stages.length)) state.scale = "log";
  if (state.scale === "steps" && !run.step) state.scale = "log";

  const losses = async () => (run.variable("loss") ? (await run.column("loss")).data : null);
  let lossOf = await losses();
  const describe = (row) => {
    const t = run.time[row], words = [run.step ? `step ${run.step[row]}` : `t = ${number(t, 5)}`];
    if (lossOf) words.push(`loss ${number(lossOf[row], 5)}`);
    const now = stages.filter((s) => run.row(s.time) <= row).at(-1);
    if (now) words.push(now.label);
    return words.join(", ");
  };
  const panels = [];
  const cursor = new Cursor({
    time: run.time, stages, describe,
    onMove: (row, t) => { for (const p of panels) p.move(row, t); remember({ t: number(t, 6) }); document.documentElement.dataset.row = row; },
  });
  const pick = (t) => cursor.to(t);

  const flat = facts.variables.filter((v) => v.dims.length <= 2).map((v) => v.name);
  const maps = facts.variables.filter((v) => v.dims.length >= 3 && v.name !== "embedding").map((v) => v.name);
  const has = (names) => names.filter((n) => flat.includes(n));
  const first = (names, but = []) => has(names)[0] ?? flat.find((n) => !but.includes(n)) ?? flat[0];
  const common = { onPick: pick, query, remember };
  const order = (names) => [...has(names), ...flat.filter((n) => !names.includes(n))];
  const loss = new CurvePanel(run, { ...common, title: "Loss, stages and plateaus", start: first(["loss"]), options: order(["loss", "token_loss", "class_loss", "group_loss"]), wide: true, key: "c0" });
  const attention = maps.length ? new MatrixPanel(run, { title: "Attention and other maps", options: [...maps.filter((n) => n.includes("attention")), ...maps.filter((n) => !n.includes("attention"))], start: maps.find((n) => n.includes("attention")) ?? maps[0], key: "map", query, remember }) : null;
  const trail = run.variable("embedding") ? new TrailPanel(run, { title: "Embeddings (principal directions)", name: "embedding" }) : null;
  const ranks = new CurvePanel(run, { ...common, title: has(RANKS).length ? "Singular values and ranks" : "Curves", start: first(RANKS, ["loss"]), options: order(RANKS), log: has(RANKS).length > 0, key: "c1" });
  const norms = new CurvePanel(run, { ...common, title: has(NORMS).length ? "Norms" : "More curves", start: first(NORMS, ["loss", ranks.name]), options: order(NORMS), log: true, key: "c2" });
  const modes = new CurvePanel(run, { ...common, title: has(["amplitude"]).length ? "Unstable modes" : "Gates, rates and speed", start: first(MODES, ["loss", ranks.name, norms.name]), options: order(MODES), log: has(["amplitude"]).length > 0, key: "c3" });
  const saddles = new SaddlePanel(run, { onPick: pick });
  const curves = [loss, ranks, norms, modes];
  panels.push(...curves, ...[attention, trail].filter(Boolean));

  function settings() {
    const last = run.time.at(-1), inside = stages.filter((s) => s.cycle === state.cycle);
    const begin = inside.length ? inside[0].time : 0;
    const end = inside.length ? stages.find((s) => s.cycle === state.cycle + 1)?.time ?? last : last;
    const scale = new Scale(state.scale, end, { begin, stages, step: run.step, time: run.time });
    return { scale, stages, plateaus: run.facts.plateaus };
  }
  async function lay() {
    const now = settings();
    cursor.lay(now.scale);
    await Promise.all(curves.map((c) => c.draw(now)));
  }
  const bar = h("div", { class: "bar" },
    select("Time axis", SCALES.filter(([k]) => (k !== "steps" || run.step) && (k !== "stage" || stages.length)), state.scale, (v) => { state.scale = v; remember({ scale: v }); lay(); }),
    cycles.length > 1 ? select("Cycle", [[0, "all"], ...cycles.map((c) => [c, c])], state.cycle, (v) => { state.cycle = Number(v); remember({ cycle: v === "0" ? null : v }); lay(); if (state.cycle) cursor.to(stages.find((s) => s.cycle === state.cycle).time); }) : null,
    h("p", { class: "soft" }, "Keys: ← → a row (shift: ten), [ ] a stage, space plays. Click a curve, a stage or a saddle to go there."));

  clear(place, head, bar, cursor.element,
    h("div", { class: "panels" }, loss.element, attention?.element, trail?.element, ranks.element, norms.element, modes.element, saddles.element, about(run)),
    footer(run, cursor, panels));

  const asked = query.has("t") ? Number(query.get("t")) : NaN;
  place.addEventListener("shown", async () => {
    attention?.draw();
    trail?.draw();
    await lay();
    cursor.to(Number.isFinite(asked) ? asked : stages.find((s) => s.name === "focus")?.time ?? run.time.at(-1));
    document.documentElement.dataset.stages = stages.length;
    document.documentElement.dataset.drawn = id;
  }, { once: true });

  function again() {
    return facts.finished || facts.job?.running ? null : h("button", { type: "button", onclick: async () => { try { await post("/api/resume", { id }); say("It goes on."); dispatchEvent(new Event("hashchange")); } catch (e) { say(e.message); } } }, "Resume");
  }
  // A run that is being written grows under the same cursor.
  const timer = facts.finished ? null : setInterval(async () => {
    const now = await get("/api/run", { id }).catch(() => null);
    if (!live() || !now || (now.rows === run.facts.rows && now.status === run.facts.status)) return;
    if (now.finished) return dispatchEvent(new Event("hashchange"));
    const next = await RunData.open(id);
    if (!live()) return;
    run = next;
    stages = named(run.facts.stages);
    lossOf = await losses();
    Object.assign(cursor, { time: run.time, stages });
    for (const p of panels) p.run = run;
    await Promise.all([lay(), attention?.draw(), trail?.draw()]);
    cursor.set(cursor.row);
    clear(head.querySelector(".state"), statusWords(run.facts));
    document.documentElement.dataset.stages = stages.length;
  }, 2000);
  return () => { cursor.leave(); clearInterval(timer); };
}

function statusWords(facts) {
  return [h("span", { class: `status ${statusClass(facts)}` }, facts.status), ` ${facts.sentence}`, ` ${facts.rows} rows.`];
}

function header(run) {
  const { facts } = run;
  const differs = Object.entries(facts.differs).map(([k, v]) => `${k}=${brief(v)}`).join("  ");
  const id = encodeURIComponent(facts.id);
  return h("div", {}, h("h1", {}, facts.name),
    h("p", { class: "lead" }, facts.title, differs ? ` · ${differs}` : " · default config"),
    h("p", { class: "state" }, statusWords(facts)),
    facts.notes.length ? h("div", { class: "notes" }, facts.notes.map((n) => h("p", {}, n))) : null,
    h("p", {},
      facts.report ? [h("a", { href: link("/api/report", { id: facts.id }), target: "_blank", rel: "noopener" }, "Report page"), " · "] : null,
      facts.claims ? [h("a", { href: `#/ledger?id=${id}` }, "Ledger of claims"), " · "] : null,
      h("a", { href: `#/compare?runs=${encodeURIComponent(encodeURIComponent(facts.id))}` }, "Compare with …"), " · ",
      h("a", { href: `#/whatif?study=${encodeURIComponent(facts.study)}&like=${id}` }, "What if …")));
}

function about(run) {
  const { facts } = run;
  const rows = facts.summary.filter(([, v]) => v !== null && typeof v !== "object").slice(0, 400);
  return h("section", { class: "panel", "aria-label": "About this run" }, h("h2", {}, "About this run"),
    h("details", {}, h("summary", {}, `Config (${Object.keys(facts.config).length} keys)`), h("dl", { class: "facts" }, Object.entries(facts.config).map(([k, v]) => [h("dt", {}, k), h("dd", {}, brief(v))]))),
    h("details", {}, h("summary", {}, `Stages (${facts.stages.length})`), h("dl", { class: "facts" }, facts.stages.map((s) => [h("dt", {}, `${s.name}${s.cycle > 1 ? ` ${s.cycle}` : ""}`), h("dd", {}, `${s.step !== undefined ? `step ${s.step}` : `t = ${number(s.time, 5)}`}: ${s.evidence ?? ""}`)]))),
    h("details", {}, h("summary", {}, `Numbers (${rows.length})`), h("dl", { class: "facts" }, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, typeof v === "number" ? number(v, 6) : String(v))]))),
    facts.figures.length ? h("details", { ontoggle: (e) => { if (e.target.open) for (const img of e.target.querySelectorAll("img[data-src]")) { img.src = img.dataset.src; img.removeAttribute("data-src"); } } },
      h("summary", {}, `Figures (${facts.figures.length})`), facts.figures.map((name) => h("p", {}, h("a", { href: link("/api/figure", { id: facts.id, name }), target: "_blank", rel: "noopener" }, name.replaceAll("-", " "))))) : null,
    h("p", { class: "soft" }, `Conserved quantities drifted by ${facts.drift === null ? "an unknown amount" : number(facts.drift, 2)}; ${number(facts.work?.seconds, 3)} s of solve.`));
}

function footer(run, cursor, panels) {
  const { facts } = run;
  const names = () => [...new Set(panels.map((p) => p.name).filter(Boolean))];
  return share({
    python: () => `import attnflow as af\n\nrun = af.open_run(${quoted(facts.path)})\nnow = run.trajectory.sel(time=${number(run.time[cursor.row], 17)}, method="nearest")\nnow[${JSON.stringify(names())}]`,
    command: () => `attnflow show ${word(facts.path)}\n# and to make it again:\n${facts.command}`,
    downloads: [
      ["CSV of what is shown", () => link("/api/download", { id: facts.id, names: names().join(","), format: "csv" })],
      ["netCDF of everything", () => link("/api/download", { id: facts.id, format: "netcdf" })],
    ],
  });
}
