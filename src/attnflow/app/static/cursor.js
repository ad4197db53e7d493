// One time cursor: a bar to scrub and play, by mouse and keyboard; whoever listens is told the time.

import { clear, h, number } from "./dom.js";

const TICKS = 2000;

export class Cursor {
  /** time: sorted times; describe(row) words about it; stages with labels. */
  constructor({ time, describe, stages, onMove }) {
    Object.assign(this, { time, describe, stages, onMove });
    this.row = 0;
    this.range = h("input", { type: "range", min: 0, max: TICKS, step: 1, "aria-label": "time" });
    this.flags = h("div", { class: "flags" });
    this.where = h("output", { class: "where" });
    this.play = h("button", { type: "button", class: "main", "aria-pressed": "false", onclick: () => this.toggle() }, "Play");
    const back = h("button", { type: "button", onclick: () => this.stage(-1), title: "previous stage (key [)" }, "◀ stage");
    const on = h("button", { type: "button", onclick: () => this.stage(1), title: "next stage (key ])" }, "stage ▶");
    this.element = h("div", { class: "timebar", role: "group", "aria-label": "Time cursor" },
      h("div", { class: "buttons" }, this.play, back, on), h("div", { class: "track" }, this.range, this.flags), this.where);
    this.range.addEventListener("input", () => this.to(this.scale.time(this.place(Number(this.range.value) / TICKS))));
    this.keys = (e) => this.key(e);
    document.addEventListener("keydown", this.keys);
  }
  place(share) { const [low, high] = this.scale.ends; return low + share * (high - low); }
  share(t) { const [low, high] = this.scale.ends; return (this.scale.at(t) - low) / (high - low || 1); }
  lay(scale) {
    this.scale = scale;
    // A name is written where there is room for it, else a dot; all can be clicked.
    const room = this.flags.clientWidth || 600;
    let free = -1e9;
    clear(this.flags, this.stages.map((s) => {
      const at = this.share(s.time), wide = 6.3 * s.label.length + 8;
      if (at < 0 || at > 1) return null;
      const left = Math.max(0, Math.min(at * room - wide / 2, room - wide)), narrow = left < free;
      const middle = narrow ? at * room : left + wide / 2;
      if (!narrow) free = left + wide;
      else free = Math.max(free, at * room + 5);
      return h("button", { type: "button", tabindex: -1, "aria-label": `go to ${s.label}`, style: { left: `${100 * middle / room}%` }, title: `${s.label} at ${number(s.time, 4)}: ${s.evidence ?? ""}`, onclick: () => this.to(s.time) }, narrow ? "·" : s.label);
    }));
    this.show();
  }
  /** Nearest row of a time. */
  near(t) {
    const times = this.time;
    let low = 0, high = times.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (times[mid] <= t) low = mid; else high = mid; }
    return t - times[low] <= times[high] - t ? low : high;
  }
  to(t) { this.set(this.near(t)); }
  set(row) {
    this.row = Math.max(0, Math.min(this.time.length - 1, row));
    this.show();
    this.onMove(this.row, this.time[this.row]);
  }
  show() {
    const t = this.time[this.row];
    if (t === undefined || !this.scale) return;
    const words = this.describe(this.row);
    this.range.value = Math.round(TICKS * Math.max(0, Math.min(1, this.share(t))));
    this.range.setAttribute("aria-valuetext", words);
    const [first, ...rest] = words.split(", ");
    clear(this.where, h("b", {}, first), rest.length ? `, ${rest.join(", ")}` : "");
  }
  stage(way) {
    const t = this.time[this.row], times = this.stages.map((s) => s.time).sort((a, b) => a - b);
    const slack = 1e-9 * (this.time.at(-1) || 1);
    const next = way > 0 ? times.find((x) => this.near(x) > this.row && x > t - slack) : times.findLast((x) => this.near(x) < this.row);
    this.to(next ?? (way > 0 ? this.time.at(-1) : 0));
  }
  key(event) {
    const tag = event.target.tagName;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const ours = event.target === this.range;
    if (["SELECT", "TEXTAREA"].includes(tag) || (tag === "INPUT" && !ours)) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 };
    if (event.key === " " && (ours || !["BUTTON", "A", "SUMMARY"].includes(tag))) this.toggle();
    else if (event.key === "[" || (ours && event.key === "PageDown")) this.stage(-1);
    else if (event.key === "]" || (ours && event.key === "PageUp")) this.stage(1);
    else if (event.key in moves && (ours || event.key.endsWith("t"))) this.set(this.row + moves[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === "Home" && ours) this.set(0);
    else if (event.key === "End" && ours) this.set(this.time.length - 1);
    else return;
    event.preventDefault();
  }
  toggle() { if (this.playing) this.stop(); else this.start(); }
  start() {
    if (this.row >= this.time.length - 1) this.set(0);
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-pressed", "true");
    // Twenty seconds from end to end, at the pace of the chosen scale.
    let last = performance.now(), share = Math.max(0, this.share(this.time[this.row]));
    const step = (now) => {
      share += (now - last) / 20000;
      last = now;
      if (share >= 1) { this.set(this.near(this.scale.time(this.place(1)))); return this.stop(); }
      const row = this.near(this.scale.time(this.place(share)));
      if (row !== this.row) this.set(row);
      this.playing = requestAnimationFrame(step);
    };
    this.playing = requestAnimationFrame(step);
  }
  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  }
  leave() { this.stop(); document.removeEventListener("keydown", this.keys); }
}
