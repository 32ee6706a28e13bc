// state.js: what the reader has chosen. One plain object; every change goes through `set`, and the whole page draws from it.
// The part of it that is worth keeping stands in the address (#layer=2&heads=8), so that a view can be bookmarked.
import { chosenTokens, PAIRS } from "./tokens.js";

/**
 * @typedef {object} State
 * @property {string} view
 * @property {number} layer place in manifest.attentions
 * @property {number[]} heads the heads that are on
 * @property {number} head the head that numbers are read from
 * @property {string} pair
 * @property {number} threshold weights below it are not drawn as lines
 * @property {"sqrt"|"linear"} scale
 * @property {"query"|"key"} side the column of the token in hand
 * @property {number|null} query
 * @property {number|null} key
 * @property {boolean} pinned
 */

/** @returns {State} */
export function firstState(manifest) {
  const heads = (manifest.show?.heads ?? [0]).filter((head) => head < manifest.model.num_attention_heads);
  const layer = manifest.attentions.findIndex((entry) => entry.layer === manifest.show?.layer);
  return {
    view: manifest.show?.view ?? "heads", layer: Math.max(0, layer), heads, head: heads[0] ?? 0, pair: "all",
    threshold: 0.02, scale: "sqrt", side: "query", query: null, key: null, pinned: false,
  };
}

/**
 * Holds the state and tells `changed` once per screen frame, however often it is set; `settle` does not wait for the frame.
 * @param {State} state
 * @param {(state: State) => void} changed
 */
export function createStore(state, changed) {
  let waiting = false;
  const tell = () => {
    waiting = false;
    changed(state);
  };
  const set = (patch) => {
    state = { ...state, ...patch };
    if (!waiting) requestAnimationFrame(settle);
    waiting = true;
  };
  const settle = () => waiting && tell();
  return { get: () => state, set, settle };
}

/** The state as the text after # in the address. */
export function toHash(state, manifest) {
  const words = { view: state.view, layer: manifest.attentions[state.layer].layer, heads: state.heads.join("."), head: state.head };
  if (state.pair !== "all") words.pair = state.pair;
  if (state.pinned && state.query !== null) words.query = state.query;
  if (state.pinned && state.key !== null) words.key = state.key;
  return "#" + new URLSearchParams(words);
}

/**
 * The other way; what does not fit this model is left out.
 * @returns {Partial<State>}
 */
export function fromHash(hash, manifest, views) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (text, end) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : null);
  /** @type {Partial<State>} */
  const patch = {};
  const heads = manifest.model.num_attention_heads;
  const layer = manifest.attentions.findIndex((entry) => String(entry.layer) === words.get("layer"));
  if (layer >= 0) patch.layer = layer;
  if (views.includes(words.get("view"))) patch.view = words.get("view");
  const pair = words.get("pair");
  if (Object.hasOwn(PAIRS, pair ?? "") && chosenTokens(manifest.tokens, pair).key.length) patch.pair = pair;
  if (words.has("heads")) patch.heads = words.get("heads").split(".").map((text) => number(text, heads)).filter((head) => head !== null);
  const head = number(words.get("head"), heads) ?? patch.heads?.[0] ?? null;
  if (head !== null) patch.head = head;
  const shown = chosenTokens(manifest.tokens, patch.pair ?? "all");
  for (const side of ["query", "key"]) {
    const token = number(words.get(side), manifest.tokens.length);
    if (token !== null && shown[side].includes(token)) Object.assign(patch, { [side]: token, pinned: true });
  }
  if (patch.pinned) patch.side = patch.query === undefined ? "key" : "query";
  return patch;
}

/** Goes to a head: with one head on it is replaced, with several it joins them. */
export function chooseHead(state, head) {
  const alone = state.heads.length <= 1;
  return { head, heads: alone ? [head] : [...new Set([...state.heads, head])].sort((a, b) => a - b) };
}

/** Turns a head on or off. */
export function toggleHead(state, head) {
  if (!state.heads.includes(head)) return { head, heads: [...state.heads, head].sort((a, b) => a - b) };
  const heads = state.heads.filter((other) => other !== head);
  return { heads, head: state.head === head && heads.length ? heads[0] : state.head };
}

/** Lets go of the token in hand. */
export const NO_TOKEN = { query: null, key: null, pinned: false };
