// The router: a view per address, and the line of what is being solved.

import { get } from "./api.js";
import { clear, h } from "./dom.js";

const VIEWS = {
  runs: ["Runs", () => import("./view_runs.js")],
  run: [null, () => import("./view_run.js")],
  compare: [null, () => import("./view_compare.js")],
  sweep: ["Sweeps", () => import("./view_sweep.js")],
  ledger: ["Ledger", () => import("./view_ledger.js")],
  whatif: ["What if", () => import("./view_whatif.js")],
  stores: ["Corpus and checkpoints", () => import("./view_stores.js")],
};

let leave = null;
let turn = 0;
let current = { name: "", query: new URLSearchParams() };

function read() {
  const [path, words = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: VIEWS[path] ? path : "runs", query: new URLSearchParams(words) };
}

/** Writes the state of a view into the address, without leaving the view. */
let writing = 0;
function remember(changes) {
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") current.query.delete(key);
    else current.query.set(key, value);
  }
  clearTimeout(writing);
  const { name, query } = current;
  writing = setTimeout(() => {
    if (current.name === name) history.replaceState(null, "", `#/${name}?${query}`);
  }, 250);
}

async function show() {
  const here = ++turn;
  const place = document.getElementById("content");
  clearTimeout(writing);
  leave?.();
  leave = null;
  current = read();
  for (const a of document.querySelectorAll("#nav a")) {
    if (a.dataset.view === current.name) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  clear(place, h("p", { class: "wait" }, "One moment …"));
  try {
    const view = await VIEWS[current.name][1]();
    const inside = h("div", {});
    const left = await view.show(inside, current.query, { remember, live: () => here === turn });
    if (here !== turn) return left?.();
    leave = left ?? null;
    clear(place, inside);
    place.querySelector("[data-shown]")?.dispatchEvent(new Event("shown"));
    inside.dispatchEvent(new Event("shown"));
    document.title = `${inside.querySelector("h1")?.textContent ?? "Runs"} · attnflow`;
    document.documentElement.dataset.shown = current.name;
  } catch (error) {
    if (here === turn) clear(place, h("h1", {}, "This could not be shown"), h("p", { class: "error", role: "alert" }, error.message), h("p", {}, h("a", { href: "#/runs" }, "All runs")));
  }
}

async function watch() {
  try {
    if (!document.hidden) {
      const { jobs } = await get("/api/runs");
      const running = jobs.filter((j) => j.running);
      document.getElementById("jobs").textContent = running.length ? `solving ${running.map((j) => j.id).join(", ")}` : "";
    }
  } catch { /* the server is gone; the next thing that is asked says so */ }
  setTimeout(watch, 5000);
}

clear(document.getElementById("nav"),
  Object.entries(VIEWS).filter(([, [title]]) => title).map(([name, [title]]) => h("li", {}, h("a", { href: `#/${name}`, "data-view": name }, title))));
document.getElementById("skip").addEventListener("click", (e) => { e.preventDefault(); document.getElementById("content").focus(); });
addEventListener("hashchange", show);
show();
setTimeout(watch, 4000);
