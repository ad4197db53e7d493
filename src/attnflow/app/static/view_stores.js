// Counted texts: what a token is tied to, under each basis. Series of checkpoints: layer by step.

import { RunData, get, link } from "./api.js";
import { clear, h, number, select } from "./dom.js";
import { draw, plain, plotly } from "./plots.js";
import { quoted, share, word } from "./share.js";

export async function show(place, query, tools) {
  const { corpora, series } = await get("/api/stores");
  const all = [...corpora.map((c) => ({ ...c, kind: "corpus" })), ...series.map((s) => ({ ...s, kind: "series" }))];
  if (!all.length) {
    clear(place, h("h1", {}, "Corpus and checkpoints"), h("p", {}, "This folder has no counted text and no series of checkpoints."));
    return null;
  }
  const chosen = all.find((s) => s.id === query.get("id")) ?? all[0];
  const picker = select("Store", all.map((s) => [s.id, `${s.name} (${s.kind === "corpus" ? "text" : "checkpoints"})`]), chosen.id, (v) => { location.hash = `#/stores?id=${encodeURIComponent(v)}`; });
  return chosen.kind === "corpus" ? corpus(place, query, tools, chosen, picker) : checkpoints(place, query, tools, chosen, picker);
}

async function corpus(place, query, { remember, live }, { id, name }, picker) {
  const about = await get("/api/corpus", { id });
  const order = about.tokens.map((_, k) => k).sort((a, b) => (about.counts ? about.counts[b] - about.counts[a] : a - b));
  let token = Math.max(0, about.tokens.indexOf(query.get("token") ?? about.tokens[order[0]]));
  const lists = h("div", { class: "cards" }), told = h("p", { class: "soft", "aria-live": "polite" });
  const written = (t) => (t.trim() === t && t !== "" ? t : JSON.stringify(t));
  const box = h("input", { type: "text", list: "tokens", value: about.tokens[token] });
  box.addEventListener("change", () => {
    const at = about.tokens.indexOf(box.value);
    if (at < 0) { told.textContent = `“${box.value}” is no token of this text.`; return; }
    token = at;
    remember({ token: about.tokens[at] });
    fill();
  });
  async function fill() {
    const found = await get("/api/associations", { id, token });
    if (!live()) return;
    told.textContent = `${written(about.tokens[token])}${about.counts ? `: ${number(about.counts[token], 6)}` : ""}`;
    clear(lists, about.bases.map((basis) => {
      const nulls = about.null?.[basis];
      return h("section", { class: "card", "aria-label": `associations, ${basis}` }, h("h2", {}, basis.replaceAll("_", " ")),
        nulls && typeof nulls === "object" ? h("p", { class: "soft" }, `cosine with its nulls: ${Object.entries(nulls).map(([k, v]) => `${k} ${number(v, 3)}`).join(", ")}`) : null,
        found[basis].length ? h("table", {}, h("thead", {}, h("tr", {}, ["token", "entry", "by chance"].map((w) => h("th", { scope: "col" }, w)))),
          h("tbody", {}, found[basis].slice(0, 12).map(([k, x, chance]) => h("tr", {}, h("td", {}, written(about.tokens[k])), h("td", {}, number(x, 3)), h("td", {}, number(chance, 3)))))) : h("p", {}, "no entry above 0"));
    }));
    document.documentElement.dataset.drawn = `token ${token}`;
  }
  clear(place, h("h1", {}, `Text ${name}`), h("p", { class: "lead" }, Object.entries(about.facts).map(([k, v]) => `${k} ${typeof v === "number" ? number(v, 6) : v}`).join(" · ")),
    h("div", { class: "bar" }, picker, h("label", {}, "Token", box), h("datalist", { id: "tokens" }, order.slice(0, 500).map((k) => h("option", { value: about.tokens[k] })))),
    told, lists,
    share({
      python: () => `import xarray as xr\nfrom pathlib import Path\n\nstore = next(p for p in Path(${quoted(about.path)}).glob("*.zarr"))\ndata = xr.open_zarr(store)\ndata[${quoted(about.bases[0] ?? "bigram")}][${token}]`,
      command: () => about.command || `attnflow show ${word(about.path)}`,
      downloads: [["Download CSV", () => link("/api/associations.csv", { id, token })]],
    }));
  place.addEventListener("shown", fill, { once: true });
  return null;
}

async function checkpoints(place, query, { remember }, { id, name }, picker) {
  plotly();
  const run = await RunData.open(id), { facts } = run;
  const layered = facts.variables.filter((v) => v.dims.includes("layer")).map((v) => v.name);
  let shown = layered.includes(query.get("show")) ? query.get("show") : layered[0];
  const at = {};
  const spot = h("div", { class: "plot tall", role: "img", "aria-label": "layer by step" }), told = h("p", { class: "soft" }), bar = h("div", { class: "bar" });
  const flags = run.variable("flagged") ? (await run.column("flagged")).data : null;
  const steps = run.step ?? run.time;
  async function paint() {
    const about = run.variable(shown), dims = about.dims.slice(1), sizes = about.shape.slice(1);
    const { data } = await run.column(shown);
    const strides = sizes.map((_, k) => sizes.slice(k + 1).reduce((a, b) => a * b, 1)), per = sizes.reduce((a, b) => a * b, 1);
    const layers = run.labels("layer"), place_ = dims.indexOf("layer");
    const z = layers.map((_, layer) => Array.from(steps, (_, t) => {
      let sum = 0, n = 0;
      for (let k = 0; k < per; k++) {
        const index = sizes.map((size, d) => Math.floor(k / strides[d]) % size);
        if (index[place_] !== layer || dims.some((d, i) => d !== "layer" && at[d] !== undefined && at[d] !== index[i])) continue;
        const v = data[t * per + k];
        if (Number.isFinite(v)) { sum += v; n++; }
      }
      return n ? sum / n : null;
    }));
    const names = Array.from(steps, (s, t) => `${number(s)}${flags?.[t] > 0 ? " ⚑" : ""}`);
    await draw(spot, [{ type: "heatmap", x: names, y: layers.map((l) => `layer ${l}`), z, colorscale: "Cividis", colorbar: { thickness: 14 } }], { xaxis: { type: "category", title: { text: "step (⚑: flagged by the audit)" } }, margin: { l: 70, r: 10, t: 10, b: 60 } });
    told.textContent = plain(about.label) === about.label ? `${about.label}${about.units ? ` (${about.units})` : ""}, the mean over what is not chosen` : "";
    clear(bar, picker, select("Shown", layered.map((n) => [n, n.replaceAll("_", " ")]), shown, (v) => { shown = v; for (const k of Object.keys(at)) delete at[k]; remember({ show: v }); paint(); }),
      dims.filter((d) => d !== "layer").map((d) => select(d.replaceAll("_", " "), [["", "mean"], ...run.labels(d).map((l, k) => [k, l])], at[d] ?? "", (v) => { if (v === "") delete at[d]; else at[d] = Number(v); paint(); })));
    document.documentElement.dataset.drawn = `series ${shown}`;
  }
  const flagged = flags ? Array.from(steps).filter((_, t) => flags[t] > 0) : [];
  clear(place, h("h1", {}, `Checkpoints ${name}`), h("p", { class: "lead" }, facts.sentence, " ", h("a", { href: `#/run?id=${encodeURIComponent(id)}` }, "As a run, on a time cursor")),
    flagged.length ? h("p", { class: "notes" }, `The audit flags the steps ${flagged.map((s) => number(s)).join(", ")}.`) : null,
    bar, layered.length ? h("section", { class: "panel full", "aria-label": "Layer by step" }, spot, told) : h("p", {}, "Nothing in this series has layers."),
    share({
      python: () => `import attnflow as af\n\nrun = af.open_run(${quoted(facts.path)})\nrun.trajectory[${quoted(shown ?? "loss")}]`,
      command: () => facts.command, downloads: layered.length ? [["Download CSV", () => link("/api/download", { id, names: shown, format: "csv" })]] : [],
    }));
  if (layered.length) place.addEventListener("shown", paint, { once: true });
  return null;
}
