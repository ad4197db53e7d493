// One way to lay time on a line: linear, logarithmic, or even between stages.

export const SCALES = [["log", "log time"], ["linear", "linear time"], ["stage", "even between stages"], ["steps", "optimiser steps"]];

const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (k) => "10" + (k < 0 ? "⁻" : "") + String(Math.abs(k)).split("").map((d) => SUPER[d]).join("");

/** A scale: `at(t)` is a place on the line, `time(place)` its inverse, `ticks` what to write below. */
export class Scale {
  constructor(kind, last, { begin = 0, stages = [], step = null, time = null } = {}) {
    this.kind = kind;
    this.last = last || 1;
    this.begin = begin;
    // Logarithms begin where there is something to see, not at the solver's first tiny step.
    this.first = Math.max(begin, this.last * 1e-5);
    this.step = step;
    this.rows = time;
    if (kind === "stage") this.knots = knots(stages.map((s) => s.time), begin, this.last);
    this.stages = stages;
  }
  at(t) {
    if (this.kind === "log") return Math.log10(Math.max(t, this.first));
    if (this.kind === "stage") return between(this.knots, this.knots.map((_, k) => k), t);
    if (this.kind === "steps" && this.step) return between(this.rows, this.step, t);
    return t;
  }
  time(place) {
    if (this.kind === "log") return 10 ** place;
    if (this.kind === "stage") return between(this.knots.map((_, k) => k), this.knots, place);
    if (this.kind === "steps" && this.step) return between(this.step, this.rows, place);
    return place;
  }
  get ends() { return [this.at(this.kind === "log" ? this.first : this.begin), this.at(this.last)]; }
  get title() { return { log: "time (log)", stage: "stage by stage", steps: "step" }[this.kind] ?? "time"; }
  get axis() {
    const [low, high] = this.ends;
    const axis = { range: [low, high], title: { text: this.title, standoff: 6 }, zeroline: false, showgrid: false };
    if (this.kind === "log") {
      const vals = [];
      for (let k = Math.ceil(low); k <= high; k++) vals.push(k);
      return { ...axis, tickvals: vals, ticktext: vals.map(power) };
    }
    if (this.kind === "stage") {
      const vals = this.knots.map((_, k) => k);
      return { ...axis, tickvals: vals, ticktext: this.knots.map((t) => Number(t.toPrecision(3)).toString()) };
    }
    return axis;
  }
}

function knots(times, begin, last) {
  const found = [begin, ...times.filter((t) => t > begin && t < last).sort((a, b) => a - b), last];
  return found.filter((t, k) => k === 0 || t > found[k - 1]);
}

function between(xs, ys, x) {
  const n = xs.length;
  if (n < 2 || x <= xs[0]) return ys[0] ?? 0;
  if (x >= xs[n - 1]) return ys[n - 1];
  let low = 0, high = n - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] <= x) low = mid; else high = mid; }
  const share = (x - xs[low]) / (xs[high] - xs[low]);
  return ys[low] + share * (ys[high] - ys[low]);
}

/** Names of stages with their cycle where there are several of one name. */
export function named(stages) {
  return stages.map((s) => ({ ...s, label: s.cycle > 1 ? `${s.name} ${s.cycle}` : s.name }));
}
