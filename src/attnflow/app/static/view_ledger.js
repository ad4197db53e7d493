// A ledger: search, filter, group; each claim with its typeset statement, figure and snippet.

import { get, link } from "./api.js";
import { clear, h, select, typeset } from "./dom.js";
import { quoted, share, word } from "./share.js";

export async function show(place, query, { remember }) {
  const all = (await get("/api/runs")).runs.filter((r) => r.claims);
  const id = query.get("id") ?? all.at(-1)?.id;
  const picker = all.length ? select("Run", all.map((r) => [r.id, `${r.name} (${r.study})`]), id, (v) => { location.hash = `#/ledger?id=${encodeURIComponent(v)}`; }) : null;
  if (!id) {
    clear(place, h("h1", {}, "Ledger"), h("p", {}, "No run here has its claims checked: ", h("code", {}, "attnflow run focus-dilution"), " checks them."));
    return null;
  }
  const [{ rows, headline }, facts] = await Promise.all([get("/api/ledger", { id }), get("/api/run", { id })]);
  const state = Object.fromEntries(["text", "verdict", "part", "strength", "whose", "group"].map((k) => [k, query.get(k) ?? ""]));
  state.group ||= "section";
  const list = h("div", {}), told = h("p", { class: "soft", "aria-live": "polite" });
  const values = (name) => [["", "all"], ...[...new Set(rows.map((r) => r[name]))].map((v) => [v, v])];
  const change = (name) => (v) => { state[name] = v; remember({ [name]: v }); fill(); };
  const text = h("input", { type: "search", value: state.text, autocomplete: "off" });
  text.addEventListener("input", () => change("text")(text.value));

  function fill() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((r) => words.every((w) => `${r.id} ${r.plain} ${r.words} ${r.erratum ?? ""}`.toLowerCase().includes(w))
      && ["verdict", "part", "strength"].every((n) => !state[n] || r[n] === state[n])
      && (!state.whose || (state.whose === "ours") === r.ours));
    told.textContent = `${found.length} of ${rows.length} claims`;
    const groups = new Map();
    for (const r of found) {
      const name = state.group === "verdict" ? r.words.split(",")[0] : state.group === "erratum" ? r.erratum ?? "no erratum" : state.group === "section" ? r.section : "";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(r);
    }
    clear(list, [...groups].map(([name, some]) => h("section", {}, name ? h("h2", {}, typeset(name), h("small", {}, ` ${some.length}`)) : null, some.map(claim))));
  }
  function claim(r) {
    const inside = h("div", {});
    const box = h("details", { class: "claim", colour: r.colour, ontoggle: () => { if (box.open && !inside.childNodes.length) clear(inside, opened(r)); } },
      h("summary", {}, h("b", {}, r.words), h("span", {}, r.id, h("br", {}), h("small", {}, `${r.part} · ${r.strength}`)), h("span", { class: "statement" }, typeset(r.title))), inside);
    return box;
  }
  function opened(r) {
    return [
      h("dl", { class: "facts" }, r.compared.flatMap((c) => [h("dt", {}, c.name || "predicted"), h("dd", {}, `${c.predicted} ${c.within ?? ""}`), h("dt", {}, "measured"), h("dd", {}, c.measured)]),
        r.facts.flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, typeset(v))]), r.source ? [h("dt", {}, "source"), h("dd", {}, r.source)] : null,
        Object.entries(r.correction ?? {}).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, typeset(v))])),
      r.snippet ? [h("h3", {}, "A snippet that shows it"), h("pre", {}, r.snippet)] : null,
      r.figures.length ? h("p", {}, "Figures: ", r.figures.flatMap((name) => [h("a", { href: link("/api/figure", { id, name }), target: "_blank", rel: "noopener" }, name.replaceAll("-", " ")), " "])) : null,
      h("p", {}, h("a", { href: `#/run?id=${encodeURIComponent(id)}` }, "The run"), " · ", h("code", {}, `attnflow check ${facts.study} --only ${word(r.id)}`)),
    ];
  }
  clear(place, h("h1", {}, `Ledger of ${facts.name}`), h("p", { class: "lead" }, headline),
    h("div", { class: "bar", role: "search" }, picker, h("label", {}, "Search", text),
      select("Verdict", values("verdict"), state.verdict, change("verdict")), select("Part", values("part"), state.part, change("part")), select("Strength", values("strength"), state.strength, change("strength")),
      select("Of", [["", "all"], ["paper", "the paper"], ["ours", "ours"]], state.whose, change("whose")),
      select("Grouped by", [["section", "section"], ["verdict", "verdict"], ["erratum", "erratum"], ["none", "nothing"]], state.group, change("group"))),
    told, list,
    share({
      python: () => `import attnflow as af\n\nledger = af.open_run(${quoted(facts.path)}).claims\n[row for row in ledger if ${quoted(state.text)} in row.title]`,
      command: () => `${facts.command.replace("attnflow run", "attnflow check")}${state.text ? ` --only ${word(state.text)}` : ""}`,
      downloads: [["Download CSV", () => link("/api/ledger/download", { id })]],
    }));
  fill();
  return null;
}
