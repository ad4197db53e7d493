import { clear, h } from "./dom.js"; export async function show(place) { clear(place, h("h1", {}, "soon")); }
