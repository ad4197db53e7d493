// What the page asks the server for.

const token = document.querySelector("meta[name=attnflow-token]").content;

function address(path, query = {}) {
  const words = new URLSearchParams();
  for (const [k, v] of Object.entries(query)) if (v !== null && v !== undefined) words.set(k, v);
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

async function good(response) {
  if (response.ok) return response;
  let words = `${response.status} ${response.statusText}`;
  try { words = (await response.clone().json()).error ?? words; } catch { words = (await response.text()) || words; }
  throw new Error(words);
}

export async function get(path, query) {
  return (await good(await fetch(address(path, query)))).json();
}

export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-attnflow-token": token };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  return (await good(response)).json();
}

/** Plain numbers with their shape. */
export async function numbers(path, query) {
  const response = await good(await fetch(address(path, query)));
  const shape = JSON.parse(response.headers.get("x-shape"));
  const told = JSON.parse(response.headers.get("x-told") ?? "{}");
  return { shape, told, data: new Float64Array(await response.arrayBuffer()) };
}

export const link = address;

/** A run's facts and columns; a column is asked for once. */
export class RunData {
  constructor(facts) { this.facts = facts; this.columns = new Map(); }
  static async open(id) {
    const run = new RunData(await get("/api/run", { id }));
    if (run.facts.rows) {
      const [time, step] = await Promise.all([run.column("time"), run.facts.steps ? run.column("step").catch(() => null) : null]);
      run.time = time.data;
      run.step = step?.data ?? null;
    } else { run.time = new Float64Array(0); run.step = null; }
    return run;
  }
  variable(name) { return this.facts.variables.find((v) => v.name === name); }
  labels(dim) { return this.facts.labels[dim] ?? []; }
  column(name, take = null) {
    const key = take === null ? name : `${name}|${take}`;
    if (!this.columns.has(key)) {
      this.columns.set(key, numbers("/api/column", { id: this.facts.id, name, take }));
    }
    return this.columns.get(key);
  }
  projection(name) {
    const key = `projection|${name}`;
    if (!this.columns.has(key)) this.columns.set(key, numbers("/api/projection", { id: this.facts.id, name }));
    return this.columns.get(key);
  }
  frame(name, row) { return numbers("/api/frame", { id: this.facts.id, name, row }); }
  /** The row whose time is nearest. */
  row(t) {
    const times = this.time;
    let low = 0, high = times.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (times[mid] <= t) low = mid; else high = mid; }
    return t - times[low] <= times[high] - t ? low : high;
  }
}
