// The foot of every view: its address, the same in Python and as a command, and the data behind it.

import { h, say } from "./dom.js";

export async function copied(text, what) {
  try { await navigator.clipboard.writeText(text); say(`${what} copied`); }
  catch {
    const box = h("textarea", { value: text, "aria-label": what });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    say(`${what} copied`);
  }
}

/** python, command: functions that give the text now; downloads: [words, address function]. */
export function share({ python, command, downloads = [] }) {
  const shown = { python: h("pre", {}), command: h("pre", {}) };
  const code = h("details", { ontoggle: () => { shown.python.textContent = python(); shown.command.textContent = command(); } },
    h("summary", {}, "Show the code"), h("h3", {}, "Python"), shown.python, h("h3", {}, "Command"), shown.command);
  return h("section", { class: "share", "aria-label": "Share this view" },
    h("div", { class: "bar" },
      h("button", { type: "button", onclick: () => copied(location.href, "Address") }, "Copy the address"),
      h("button", { type: "button", "data-copy": "python", onclick: () => copied(python(), "Python") }, "Copy as Python"),
      h("button", { type: "button", "data-copy": "command", onclick: () => copied(command(), "Command") }, "Copy as command"),
      downloads.map(([words, address]) => {
        const a = h("a", { class: "button", href: address(), download: true }, words);
        a.addEventListener("pointerdown", () => { a.href = address(); });
        a.addEventListener("focus", () => { a.href = address(); });
        return a;
      })),
    code);
}

export const quoted = (text) => JSON.stringify(text);
/** A word for a POSIX shell. */
export const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
