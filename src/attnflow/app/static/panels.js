// The panels of a run: curves, a matrix at the cursor, embeddings with trails, saddles.

import { clear, colour, h, number, select } from "./dom.js";
import { MatrixFrame, TrailFrame } from "./frames.js";
import { TimePlot } from "./plots.js";

const MANY = 24;

/** Boxes to choose entries of an axis; a long axis is chosen by typing. */
export function chooser(title, labels, chosen, change) {
  if (labels.length <= MANY) {
    return h("fieldset", {}, h("legend", {}, title), h("div", { class: "choice" }, labels.map((label, k) => {
      const box = h("input", { type: "checkbox", checked: chosen.has(k) });
      box.addEventListener("change", () => { if (box.checked) chosen.add(k); else chosen.delete(k); change(); });
      return h("label", {}, box, label);
    })));
  }
  const box = h("input", { type: "text", value: [...chosen].map((k) => labels[k]).join(", "), size: 28 });
  box.addEventListener("change", () => {
    const wanted = box.value.split(",").map((w) => w.trim()).filter(Boolean);
    const found = wanted.map((w) => labels.indexOf(w)).filter((k) => k >= 0);
    chosen.clear();
    found.slice(0, MANY).forEach((k) => chosen.add(k));
    change();
  });
  return h("label", {}, `${title} (of ${labels.length}, comma between)`, box);
}

/** Curves of any variable with at most one axis besides time. */
export class CurvePanel {
  constructor(run, { title, start, options, onPick, wide = false, log = false, key, query, remember }) {
    this.run = run;
    this.options = options;
    this.name = options.includes(query.get(key)) ? query.get(key) : start;
    this.log = query.has(`${key}log`) ? query.get(`${key}log`) === "1" : log;
    this.chosen = new Map();
    this.place = h("div", { class: wide ? "plot tall" : "plot" });
    this.legend = h("ul", { class: "legend" });
    this.choices = h("div", {});
    this.words = h("p", { class: "soft" });
    this.plot = new TimePlot(this.place, { onPick, label: `${title} over time` });
    const box = h("input", { type: "checkbox", checked: this.log });
    box.addEventListener("change", () => { this.log = box.checked; remember({ [`${key}log`]: this.log ? "1" : "0" }); this.draw(); });
    const pick = options.length > 1 ? select("Shown", options.map((n) => [n, n.replaceAll("_", " ")]), this.name, (v) => { this.name = v; remember({ [key]: v }); this.draw(); }) : null;
    this.element = h("section", { class: wide ? "panel wide" : "panel", "aria-label": title },
      h("h2", {}, title), h("div", { class: "bar" }, pick, h("label", {}, box, " log values")), this.words, this.place, this.legend, this.choices);
  }
  async values() {
    const about = this.run.variable(this.name);
    const dim = about.dims[1];
    if (!dim) return [{ name: about.label || this.name, values: (await this.run.column(this.name)).data }];
    const labels = this.run.labels(dim), size = about.shape[1];
    if (!this.chosen.has(dim)) this.chosen.set(dim, new Set(Array.from({ length: Math.min(size, 8) }, (_, k) => k)));
    const chosen = this.chosen.get(dim);
    clear(this.choices, size > 1 ? chooser(dim.replaceAll("_", " "), labels, chosen, () => this.draw()) : null);
    const wanted = [...chosen].sort((a, b) => a - b);
    const { data, shape } = about.whole ? await this.run.column(this.name) : await this.run.column(this.name, wanted.join(","));
    const width = shape[1], rows = shape[0];
    return wanted.map((k, place) => {
      const at = about.whole ? k : place, values = new Float64Array(rows);
      for (let t = 0; t < rows; t++) values[t] = data[t * width + at];
      return { name: labels[k] ?? String(k), values, colour: colour(k) };
    });
  }
  async draw(settings = this.settings) {
    this.settings = settings;
    this.series = await this.values();
    const about = this.run.variable(this.name);
    const { scale, stages, plateaus } = settings;
    await this.plot.draw(scale, this.run.time, this.series, { log: this.log, stages, plateaus, unit: about.units });
    this.words.textContent = about.label;
    this.items = this.series.map(() => h("span", {}));
    clear(this.legend, this.series.map((s, k) => h("li", {}, h("span", { class: "swatch", style: { background: s.colour ?? colour(k) } }), ` ${s.name} `, this.items[k])));
    this.move(this.row ?? 0, this.t ?? 0);
  }
  move(row, t) {
    this.row = row;
    this.t = t;
    this.plot.move(t);
    this.items?.forEach((item, k) => { item.textContent = number(this.series[k].values[row], 4); });
  }
}

/** A variable with two axes besides time, at the cursor; further axes (head, layer, sample) are chosen. */
export class MatrixPanel {
  constructor(run, { title, options, start, key, query, remember }) {
    this.run = run;
    this.name = options.includes(query.get(key)) ? query.get(key) : start;
    this.at = {};
    this.key = key;
    this.query = query;
    this.remember = remember;
    this.place = h("div", {});
    this.bar = h("div", { class: "bar" });
    this.options = options;
    this.words = h("p", { class: "soft" });
    this.element = h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), this.bar, this.place, this.words);
  }
  async draw() {
    const about = this.run.variable(this.name), dims = about.dims.slice(1);
    const leading = dims.slice(0, -2), [a, b] = dims.slice(-2);
    for (const dim of leading) {
      const asked = this.run.labels(dim).indexOf(this.query.get(`at.${dim}`));
      this.at[dim] ??= asked >= 0 ? asked : 0;
    }
    const pick = this.options.length > 1 ? select("Shown", this.options.map((n) => [n, n.replaceAll("_", " ")]), this.name, (v) => { this.name = v; this.remember({ [this.key]: v }); this.draw(); }) : null;
    clear(this.bar, pick, leading.map((dim) => select(dim.replaceAll("_", " "), this.run.labels(dim).map((l, k) => [k, l]), this.at[dim],
      (v) => { this.at[dim] = Number(v); this.remember({ [`at.${dim}`]: this.run.labels(dim)[Number(v)] }); this.update(); })));
    this.shape = about.shape.slice(1);
    this.size = this.shape.reduce((x, y) => x * y, 1);
    this.all = about.whole ? (await this.run.column(this.name)).data : null;
    const sample = this.all ?? (await this.run.frame(this.name, this.run.time.length - 1)).data;
    let low = Infinity, high = -Infinity;
    for (const v of sample) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
    if (about.units === "probability") { low = 0; high = 1; }
    const title = `${about.label} at the cursor`;
    this.frame = new MatrixFrame(this.place, title);
    this.frame.setup(this.run.labels(a), this.run.labels(b), a.replaceAll("_", " "), b.replaceAll("_", " "), Number.isFinite(low) ? [low, high] : [0, 1]);
    this.words.textContent = about.label + (about.units ? ` (${about.units})` : "");
    this.offset = () => {
      let at = 0;
      leading.forEach((dim, k) => { at = at * about.shape[k + 1] + this.at[dim]; });
      const [n, m] = this.shape.slice(-2);
      return [at * n * m, n * m];
    };
    this.update();
  }
  move(row) { this.row = row; this.update(); }
  update() {
    if (!this.frame) return;
    const row = this.row ?? 0, [first, count] = this.offset();
    if (this.all) return this.frame.update(this.all.subarray(row * this.size + first, row * this.size + first + count));
    // A large one is asked for row by row, the last one asked for wins.
    this.asked = row;
    if (this.asking) return;
    this.asking = true;
    this.run.frame(this.name, row).then(({ data }) => {
      this.asking = false;
      this.frame.update(data.subarray(first, first + count));
      if (this.asked !== row) this.update();
    }).catch(() => { this.asking = false; });
  }
}

/** Embeddings on two principal directions, with their trails. */
export class TrailPanel {
  constructor(run, { title, name }) {
    this.run = run;
    this.name = name;
    this.place = h("div", {});
    this.choices = h("div", {});
    this.chosen = null;
    this.element = h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), this.place, this.choices);
  }
  async draw() {
    const about = this.run.variable(this.name), labels = this.run.labels(about.dims[1]);
    this.chosen ??= new Set(Array.from({ length: Math.min(labels.length, 8) }, (_, k) => k));
    clear(this.choices, chooser(about.dims[1], labels, this.chosen, () => this.draw()));
    const points = await this.run.projection(this.name);
    this.frame = new TrailFrame(this.place, "embeddings on two principal directions, with trails");
    this.frame.setup(points, labels, [...this.chosen].sort((a, b) => a - b), points.told.shares);
    this.move(this.row ?? 0);
  }
  move(row) { this.row = row; this.frame?.update(row); }
}

/** Where the flow waited: rates, which weights move, predicted against measured exit. */
export class SaddlePanel {
  constructor(run, { onPick }) {
    this.run = run;
    this.rows = run.facts.saddles;
    this.detail = h("div", { "aria-live": "polite" });
    this.lines = this.rows.map((s) => {
      const line = h("tr", {},
        h("td", {}, h("button", { type: "button", onclick: () => { onPick(s.time); this.choose(s); } }, s.number === 0 ? "start" : `${s.number}`)),
        h("td", {}, s.kind), h("td", {}, number(s.loss, 5)), h("td", {}, number(s.enter, 4)), h("td", {}, s.kind === "still waiting" ? "–" : number(s.leave, 4)), h("td", {}, number(s.leave_predicted, 4)));
      return line;
    });
    this.element = h("section", { class: "panel wide saddles", "aria-label": "Saddles" }, h("h2", {}, "Saddles: where it waits"),
      this.rows.length
        ? [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of saddles" }, h("table", {}, h("caption", {}, run.facts.saddles_said), h("thead", {}, h("tr", {}, ["go to", "kind", "loss", "enters", "leaves", "exit predicted"].map((w) => h("th", { scope: "col" }, w)))), h("tbody", {}, this.lines))), this.detail]
        : h("p", { class: "soft" }, run.facts.plateaus.length ? "No saddle ledger was made for this run (its plateaus are shaded in the plots)." : "It never waited: no plateau."));
    if (this.rows.length) this.choose(this.rows[Math.min(1, this.rows.length - 1)]);
  }
  choose(s) {
    this.lines.forEach((line, k) => { line.style.background = this.rows[k] === s ? "#f6e9f4" : ""; });
    const off = s.leave_predicted === null || s.leave <= s.enter ? null : (s.leave_predicted - s.leave) / (s.leave - s.enter);
    const facts = [
      ["unstable modes", s.index], ["rates that could act", (s.rates ?? []).map((r) => number(r, 5)).join(", ") || "–"],
      ["exit rate", s.law === "exponential" ? `${number(s.rate_predicted, 5)} predicted, ${number(s.rate_measured, 5)} measured over ${number(s.efolds, 3)} e-folds` : s.law === "algebraic" ? `no rate: the speed grows like r^${number(s.power, 3)}` : "no law fits"],
      ["weights that move", s.blocks || "–"],
      ["exit", s.leave_predicted === null ? `${number(s.leave, 5)}, not predicted` : `predicted ${number(s.leave_predicted, 5)}, measured ${number(s.leave, 5)}${off === null ? "" : ` (${off > 0 ? "+" : ""}${number(100 * off, 2)} % of the wait)`}`],
      ["critical point", s.converged ? `refined; distance ${number(s.distance, 3)}, extent of the plateau ${number(s.extent, 3)}` : "not refined"],
      ["note", [s.flag, s.note].filter(Boolean).join("; ") || "–"],
    ];
    clear(this.detail, h("h3", {}, s.number === 0 ? "The start" : `Plateau ${s.number}`), h("dl", { class: "facts" }, facts.map(([k, v]) => [h("dt", {}, k), h("dd", {}, String(v ?? "–"))])));
  }
}
