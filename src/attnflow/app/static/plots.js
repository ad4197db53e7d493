// Curves and maps by plotly.js, and the needle of the time cursor above them.

import { colour, h } from "./dom.js";

let loading = null;

/** plotly.js, fetched when the first plot is drawn. */
export function plotly() {
  loading ??= new Promise((done, fail) => {
    const script = h("script", { src: "/plotly.js" });
    script.onload = () => done(window.Plotly);
    script.onerror = () => fail(new Error("plotly.js could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

/** plotly.js reads some markup in labels: ours have none. */
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const CONFIG = { displaylogo: false, displayModeBar: false, responsive: true, scrollZoom: false };
const FONT = { family: "system-ui, 'Liberation Sans', sans-serif", size: 12, color: "#1b1f24" };

export function layout(scale, more = {}) {
  return {
    font: FONT, margin: { l: 52, r: 10, t: 8, b: 38 }, showlegend: false, hovermode: "closest",
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", dragmode: "zoom",
    ...more,
    xaxis: { ...(scale ? scale.axis : {}), fixedrange: false, automargin: false, ...(more.xaxis ?? {}) },
    yaxis: { zeroline: false, gridcolor: "#eceff2", automargin: false, exponentformat: "power", ...(more.yaxis ?? {}) },
  };
}

/** A plot of curves over time with a needle; `series` are {name, values, dash, time}. */
export class TimePlot {
  constructor(place, { onPick, label }) {
    this.place = place;
    this.onPick = onPick;
    this.area = h("div", { style: { width: "100%", height: "100%" }, role: "img", "aria-label": label });
    this.needle = h("div", { class: "needle", hidden: true });
    place.append(this.area, this.needle);
  }
  async draw(scale, time, series, { log = false, stages = [], plateaus = [], unit = "", shapes = [], range = null } = {}) {
    const Plotly = await plotly();
    this.scale = scale;
    const places = new Map();
    const laid = (t) => { if (!places.has(t)) places.set(t, Array.from(t, (x) => scale.at(x))); return places.get(t); };
    const data = series.map((s, k) => ({
      x: laid(s.time ?? time), y: Array.from(s.values, (v) => (Number.isFinite(v) && (!log || v > 0) ? v : null)),
      mode: "lines", name: plain(s.name), line: { color: s.colour ?? colour(k), width: s.width ?? 1.6, dash: s.dash ?? "solid" },
      hovertemplate: `${plain(s.name)}: %{y:.5g}<extra></extra>`,
    }));
    const bands = plateaus.map((p) => ({
      type: "rect", xref: "x", yref: "paper", x0: scale.at(p.enter), x1: scale.at(p.leave), y0: 0, y1: 1,
      fillcolor: "#f1e3c2", opacity: 0.45, line: { width: 0 }, layer: "below",
    }));
    const lines = stages.map((s) => ({
      type: "line", xref: "x", yref: "paper", x0: scale.at(s.time), x1: scale.at(s.time), y0: 0, y1: 1,
      line: { color: "#9aa5b1", width: 1, dash: "dot" }, layer: "below",
    }));
    const more = { shapes: [...bands, ...lines, ...shapes], yaxis: { type: log ? "log" : "linear", ...(log ? { dtick: 1 } : {}), title: { text: plain(unit), standoff: 4 }, ...(range ? { range } : {}) } };
    await Plotly.react(this.area, data, layout(scale, more), CONFIG);
    if (!this.ready) {
      this.ready = true;
      this.area.on("plotly_relayout", () => this.move(this.t));
      this.area.on("plotly_click", (e) => { if (e.points.length) this.onPick?.(this.scale.time(e.points[0].x)); });
      this.area.addEventListener("click", (e) => this.clicked(e));
    }
    this.move(this.t);
  }
  clicked(event) {
    const full = this.area._fullLayout;
    if (!full || !this.onPick) return;
    const { l, t, w, h: height } = full._size, box = this.area.getBoundingClientRect();
    const x = event.clientX - box.left - l, y = event.clientY - box.top - t;
    if (x < 0 || x > w || y < 0 || y > height) return;
    const [low, high] = full.xaxis.range;
    this.onPick(this.scale.time(low + (high - low) * x / w));
  }
  /** Moves the needle; nothing is drawn again. */
  move(t) {
    this.t = t;
    const full = this.area._fullLayout;
    if (!full || t === undefined || !this.scale) return;
    const { l, t: top, w, h: height } = full._size, [low, high] = full.xaxis.range;
    const share = (this.scale.at(t) - low) / (high - low);
    const seen = share >= 0 && share <= 1;
    this.needle.hidden = !seen;
    if (!seen) return;
    this.needle.style.transform = `translate(${l + share * w - 1}px, ${top}px)`;
    this.needle.style.height = `${height}px`;
  }
}

/** Any other plot. */
export async function draw(place, data, more = {}, clicked = null) {
  const Plotly = await plotly();
  await Plotly.react(place, data, layout(null, more), CONFIG);
  place.removeAllListeners?.("plotly_click");
  if (clicked) place.on("plotly_click", clicked);
}
