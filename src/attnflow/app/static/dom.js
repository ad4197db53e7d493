// Elements from data. Text is always text: no label ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

/** An element; children are elements or text, attributes that are null are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else if (name === "colour") element.style.setProperty("--colour", value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(4).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

const FORMULA = new Set(
  ("math mrow mi mn mo ms mtext mspace msub msup msubsup mfrac msqrt mroot mover munder munderover " +
   "mtable mtr mtd mstyle mpadded menclose mphantom semantics mmultiscripts mprescripts none").split(" "));
const KEPT = new Set(
  ("mathvariant display displaystyle scriptlevel stretchy fence separator form accent accentunder " +
   "columnalign rowspacing columnspacing width height depth lspace rspace linethickness minsize maxsize " +
   "movablelimits largeop symmetric notation").split(" "));

/** Words with typeset formulas. Only elements of MathML are taken over; all else is its text. */
export function typeset(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const out = document.createDocumentFragment();
  for (const node of parsed.body.childNodes) copy(node, out);
  return out;
}

function copy(node, into) {
  if (node.nodeType === Node.TEXT_NODE) return void into.append(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const name = node.localName;
  let made = into;
  if (node.namespaceURI === MATHML && FORMULA.has(name)) {
    made = document.createElementNS(MATHML, name);
    for (const a of node.attributes) if (KEPT.has(a.name)) made.setAttribute(a.name, a.value);
    into.append(made);
  } else if (name === "script" || name === "style" || name === "annotation") return;
  for (const child of node.childNodes) copy(child, made);
}

export function clear(element, ...children) {
  element.replaceChildren(...children.flat(4).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** A number in a few characters. */
export function number(value, digits = 5) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : String(Number(text));
}

/** A config value as a person would type it. */
export function brief(value) {
  if (Array.isArray(value)) return "(" + value.map(brief).join(" ") + ")";
  return typeof value === "number" ? number(value, 6) : String(value);
}

let hush = 0;
export function say(words) {
  const place = document.getElementById("said");
  place.textContent = words;
  clearTimeout(hush);
  hush = setTimeout(() => { place.textContent = ""; }, 3500);
}

/** A select; options are [value, words] or plain values. */
export function select(label, options, value, change, attributes = {}) {
  const box = h("select", attributes,
    options.map((o) => {
      const [key, words] = Array.isArray(o) ? o : [o, o];
      return h("option", { value: key, selected: String(key) === String(value) }, String(words));
    }));
  box.addEventListener("change", () => change(box.value));
  return h("label", {}, label, " ", box);
}

export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a17c00", "#56b4e9", "#6a3d9a", "#333333"];
export const colour = (k) => COLOURS[k % COLOURS.length];
