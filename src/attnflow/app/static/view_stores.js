import { clear, h } from "./dom.js";
export async function show(place) { clear(place, h("h1", {}, "Corpus and checkpoints"), h("p", {}, "No store here.")); return null; }
