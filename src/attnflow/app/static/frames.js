// What is drawn anew at every position of the cursor: matrices, and points with their trails.

import { clear, colour, h, number, svg } from "./dom.js";

const MOST_WRITTEN = 144;

/** Light to dark, readable in grey: the share `x` in [0, 1] of a colour scale. */
export function shade(x, signed = false) {
  if (!Number.isFinite(x)) return "#e8e8e8";
  const mix = (a, b, s) => a.map((v, k) => Math.round(v + (b[k] - v) * s));
  const rgb = signed
    ? x < 0 ? mix([250, 250, 250], [179, 88, 6], Math.min(1, -x)) : mix([250, 250, 250], [5, 90, 150], Math.min(1, x))
    : x < 0.5 ? mix([247, 251, 255], [107, 174, 214], 2 * Math.max(x, 0)) : mix([107, 174, 214], [8, 48, 107], 2 * Math.min(x, 1) - 1);
  return `rgb(${rgb.join(" ")})`;
}

/** A matrix with named rows and columns; small ones have their numbers written. */
export class MatrixFrame {
  constructor(place, label) { this.place = place; this.label = label; }
  /** rows, columns: labels; bounds: [low, high] over all times. */
  setup(rows, columns, rowTitle, columnTitle, bounds) {
    this.signed = bounds[0] < 0;
    this.size = Math.max(Math.abs(bounds[0]), Math.abs(bounds[1])) || 1;
    this.shape = [rows.length, columns.length];
    const written = rows.length * columns.length <= MOST_WRITTEN;
    this.written = written;
    if (!written) {
      this.canvas = h("canvas", { class: "frame", width: columns.length, height: rows.length, role: "img", "aria-label": this.label, style: { imageRendering: "pixelated" } });
      clear(this.place, this.canvas, h("p", { class: "soft" }, `${rowTitle} down (${rows.length}), ${columnTitle} across (${columns.length}); ${number(bounds[0], 3)} to ${number(bounds[1], 3)}`));
      return;
    }
    const cut = (t) => (t.length > 12 ? t.slice(0, 11) + "…" : t);
    const left = 14 + 6.4 * Math.max(...rows.map((r) => Math.min(r.length, 12))) + 14, top = 34;
    const cell = Math.max(26, Math.min(62, 300 / Math.max(rows.length, columns.length)));
    const width = left + cell * columns.length + 4, height = top + cell * 0.72 * rows.length + 4;
    this.cells = [];
    this.texts = [];
    const parts = [];
    rows.forEach((row, i) => {
      parts.push(svg("text", { x: left - 5, y: top + cell * 0.72 * (i + 0.5) + 4, "text-anchor": "end" }, cut(row)));
      columns.forEach((column, j) => {
        const x = left + j * cell, y = top + i * cell * 0.72;
        const box = svg("rect", { x, y, width: cell - 1, height: cell * 0.72 - 1 });
        const text = svg("text", { x: x + cell / 2, y: y + cell * 0.36 + 4, "text-anchor": "middle" });
        this.cells.push(box);
        this.texts.push(text);
        parts.push(box, text);
      });
    });
    columns.forEach((column, j) => parts.push(svg("text", { x: left + (j + 0.5) * cell, y: top - 5, "text-anchor": "middle" }, cut(column))));
    parts.push(svg("text", { x: Math.max(left, 8 * rowTitle.length + 26), y: 12, fill: "#4f5862" }, `${columnTitle} →`));
    parts.push(svg("text", { x: 2, y: 12, fill: "#4f5862" }, `${rowTitle} ↓`));
    clear(this.place, svg("svg", { class: "frame", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.label }, parts));
  }
  update(values) {
    const relative = (v) => v / this.size;
    if (this.written) {
      for (let k = 0; k < this.cells.length; k++) {
        const x = relative(values[k]);
        this.cells[k].setAttribute("fill", shade(x, this.signed));
        this.texts[k].textContent = Number.isFinite(values[k]) ? short(values[k]) : "";
        this.texts[k].style.fill = Math.abs(x) > 0.55 ? "#fff" : "#1b1f24";
      }
      return;
    }
    const [n, m] = this.shape, context = this.canvas.getContext("2d"), image = context.createImageData(m, n);
    for (let k = 0; k < n * m; k++) {
      const [r, g, b] = shade(relative(values[k]), this.signed).match(/\d+/g) ?? [232, 232, 232];
      image.data.set([+r, +g, +b, 255], 4 * k);
    }
    context.putImageData(image, 0, 0);
  }
}

const short = (v) => (v !== 0 && Math.abs(v) < 0.005 ? v.toExponential(0).replace("e", "e") : v.toFixed(Math.abs(v) >= 100 ? 0 : 2));

/** Points of the plane with the trails behind them. */
export class TrailFrame {
  constructor(place, label) { this.place = place; this.label = label; }
  /** points: {shape: [time, item, 2], data}; chosen: which items. */
  setup(points, labels, chosen, shares) {
    this.points = points;
    this.chosen = chosen;
    const [T, N] = points.shape, size = 320, pad = 26;
    let most = 1e-12;
    for (let t = 0; t < T; t++) for (const i of chosen) for (const k of [0, 1]) most = Math.max(most, Math.abs(points.data[2 * (t * N + i) + k]));
    this.place_of = (v, flip) => size / 2 + (flip ? -1 : 1) * v / most * (size / 2 - pad);
    const parts = [svg("path", { d: `M${size / 2} 6V${size - 6}M6 ${size / 2}H${size - 6}`, stroke: "#d5dae0" })];
    this.trails = [];
    this.dots = [];
    this.names = [];
    chosen.forEach((i, k) => {
      const trail = svg("polyline", { fill: "none", stroke: colour(k), "stroke-width": 1.6, opacity: 0.55 });
      const dot = svg("circle", { r: 5, fill: colour(k), stroke: "#fff" });
      const name = svg("text", { "font-weight": 600 }, String(labels[i] ?? i).slice(0, 16));
      this.trails.push(trail); this.dots.push(dot); this.names.push(name);
      parts.push(trail, dot, name);
    });
    const [a, b] = shares ?? [];
    clear(this.place, svg("svg", { class: "frame", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": this.label }, parts),
      h("p", { class: "soft" }, `two directions that hold ${number(100 * (a ?? 0), 3)} % and ${number(100 * (b ?? 0), 3)} % of the squared length over all times`));
    this.xy = chosen.map((i) => {
      const found = new Array(T);
      for (let t = 0; t < T; t++) found[t] = [this.place_of(points.data[2 * (t * N + i)]), this.place_of(points.data[2 * (t * N + i) + 1], true)];
      return found;
    });
  }
  update(row) {
    this.xy.forEach((path, k) => {
      const [x, y] = path[row];
      this.dots[k].setAttribute("cx", x);
      this.dots[k].setAttribute("cy", y);
      this.names[k].setAttribute("x", Math.min(x + 8, 270));
      this.names[k].setAttribute("y", y - 7);
      const every = Math.max(1, Math.floor(row / 240));
      let text = "";
      for (let t = row % every; t <= row; t += every) text += `${path[t][0].toFixed(1)},${path[t][1].toFixed(1)} `;
      this.trails[k].setAttribute("points", text);
    });
  }
}
