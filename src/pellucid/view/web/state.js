// state.js: what the reader has chosen. One plain object; every change goes through `set`, and the whole page draws from it.
// The part of it that is worth keeping stands in the address (#layer=2&heads=8), so that a view can be bookmarked.
import { cutFrom, cutWords, firstCut } from "./numbers.js";
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
 * @property {"own"|"one"} ends where the colours of Model end: at each head's largest weight, or at 1
 * @property {"text"|"weight"} order of the keys that Neuron lists
 * @property {"query"|"key"} side the column of the token in hand
 * @property {number|null} query
 * @property {number|null} key
 * @property {boolean} pinned
 * @property {"heads"|"matrix"} [last] which of these two views was shown last
 */

/** Steps of the threshold. */
export const THRESHOLDS = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5];

/** @returns {State} */
export function firstState(manifest) {
  const show = manifest.show ?? {};
  const layer = Math.max(0, manifest.attentions.findIndex((entry) => (show.name ? entry.name === show.name : entry.layer === show.layer)));
  const heads = (show.heads ?? [0]).filter((head) => head < manifest.attentions[layer].heads);
  const twice = 2 / manifest.sequences[manifest.attentions[layer].keys].tokens.length; // of what an even row gives to each key
  return {
    view: show.view ?? "heads", layer, heads, head: heads[0] ?? 0, pair: "all",
    threshold: THRESHOLDS.findLast((step) => step <= Math.min(0.02, Math.max(0.001, twice))), scale: "sqrt", ends: "own", order: "text", side: "query", query: null, key: null, pinned: false,
  };
}

/**
 * Holds the state and tells `changed` once per screen frame, however often it is set; `settle` does not wait for the frame.
 * @param {State} state
 * @param {import("./data.js").Manifest} manifest
 * @param {(state: State) => void} changed
 */
export function createStore(state, manifest, changed) {
  let waiting = false;
  state = { ...state, ...inRange(state, manifest) }; // an address may name a head that is not among its heads
  const settle = () => {
    if (!waiting) return;
    waiting = false;
    changed(state);
  };
  const set = (patch) => {
    state = { ...state, ...lastOf(state), ...fitting(state, patch, manifest), ...patch };
    state = { ...state, ...inRange(state, manifest), ...inSight(state, manifest) };
    if (!waiting) requestAnimationFrame(settle);
    waiting = true;
  };
  return { get: () => state, set, settle };
}

/** The model grid opens a head in the view of one attention that was used last. */
function lastOf({ view }) {
  return view === "heads" || view === "matrix" ? { last: view } : {};
}

/** Another attention may have other tokens: then the one in hand and the pair are let go. */
function fitting(state, patch, manifest) {
  if (patch.layer === undefined || patch.layer === state.layer) return {};
  const [old, next] = [manifest.attentions[state.layer], manifest.attentions[patch.layer]];
  return old.queries === next.queries && old.keys === next.keys ? {} : { ...NO_TOKEN, pair: "all" };
}

/**
 * Another attention may have fewer heads; and a pointer may still stand on the tokens of the one that was just left. The head that
 * numbers are read from is on, unless none is.
 */
function inRange({ layer, head, heads, query, key }, manifest) {
  const { heads: count, queries, keys } = manifest.attentions[layer];
  const there = (query ?? 0) < manifest.sequences[queries].tokens.length && (key ?? 0) < manifest.sequences[keys].tokens.length;
  const on = heads.some((each) => each >= count) ? heads.filter((each) => each < count) : heads;
  const now = head < count ? head : on.at(-1) ?? count - 1;
  return {
    head: now, heads: !on.length || on.includes(now) ? on : chooseHead({ heads: on }, now).heads,
    ...(there ? {} : NO_TOKEN),
  };
}

/** A token in hand that the pair filter hides lifts the filter. */
function inSight({ layer, pair, query, key }, manifest) {
  if (pair === "all") return {};
  const shown = chosenTokens(tokensOf(manifest.attentions[layer], manifest), pair);
  const seen = (side, token) => token === null || shown[side].includes(token);
  return seen("query", query) && seen("key", key) ? {} : { pair: "all" };
}

/** The tokens that look, and those that are looked at. */
export function tokensOf({ queries, keys }, { sequences }) {
  return { query: sequences[queries].tokens, key: sequences[keys].tokens };
}

/** Which attention of a layer this is, in the words of the address: "", "encoder", "decoder", "cross". */
export function groupOf(entry) {
  return entry.kind === "cross" ? "cross" : entry.side;
}

/** Is the page of weights that were given, and of no model? @param {import("./data.js").Manifest} manifest */
export function wereGiven({ model }) {
  return model.family === "";
}

/** The places of all attentions of the same group, in order. */
export function groupPlaces(manifest, group) {
  return [...manifest.attentions.keys()].filter((place) => groupOf(manifest.attentions[place]) === group);
}

/** The state as the text after # in the address; what is as it was at first is not said. */
export function toHash(state, manifest) {
  const entry = manifest.attentions[state.layer];
  const words = { view: state.view, layer: entry.layer, heads: state.heads.join("."), head: state.head };
  if (groupOf(entry)) words.of = groupOf(entry);
  if (state.pair !== "all") words.pair = state.pair;
  if (state.pinned && state.query !== null) words.query = state.query;
  if (state.pinned && state.key !== null) words.key = state.key;
  if (words.query !== undefined && words.key !== undefined && state.side === "key") words.side = "key";
  const { threshold, scale } = firstState(manifest);
  if (state.threshold !== threshold) words.threshold = state.threshold;
  if (state.scale !== scale) words.scale = state.scale;
  if (state.ends !== "own") words.ends = state.ends;
  if (state.order !== "text") words.order = state.order;
  if (state.tensor) words.tensor = state.tensor.name;
  if (state.tensor?.cut) words.cut = cutWords(state.tensor.cut);
  if (state.tensor?.pinned) words.number = `${state.tensor.row}.${state.tensor.column}`;
  if (state.lens?.pinned) words.cell = `${state.lens.row}.${state.lens.column}`;
  if (state.diff?.of === "lens") words.diff = state.diff.pinned ? `lens.${state.diff.row}.${state.diff.column}` : "lens";
  return "#" + new URLSearchParams(words);
}

/**
 * The other way; what does not fit this model is left out.
 * @param {string} hash
 * @param {import("./data.js").Manifest} manifest
 * @param {string[]} views
 * @param {number} layer the place that holds unless the address names another
 * @returns {Partial<State>}
 */
export function fromHash(hash, manifest, views, layer) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (text, end) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : null);
  /** @type {Partial<State>} */
  const patch = { pair: "all", ...pickedOf(words, manifest) }; // an address without a pair means all
  const place = placeOf(words, manifest);
  if (place >= 0) patch.layer = place;
  const entry = manifest.attentions[patch.layer ?? layer];
  if (views.includes(words.get("view"))) patch.view = words.get("view");
  const tokens = tokensOf(entry, manifest);
  const pair = words.get("pair");
  if (Object.hasOwn(PAIRS, pair ?? "") && entry.queries === entry.keys && Object.values(chosenTokens(tokens, pair)).every((list) => list.length)) patch.pair = pair;
  const named = words.get("heads")?.split(".").map((text) => number(text, entry.heads)).filter((head) => head !== null);
  if (named?.length || words.get("heads") === "") patch.heads = sorted(named);
  const head = number(words.get("head"), entry.heads) ?? named?.[0] ?? null;
  if (head !== null) patch.head = head;
  const shown = chosenTokens(tokens, patch.pair);
  for (const side of ["query", "key"]) {
    const token = number(words.get(side), tokens[side].length);
    if (token !== null && shown[side].includes(token)) Object.assign(patch, { [side]: token, pinned: true });
  }
  if (patch.pinned) patch.side = patch.query === undefined || (patch.key !== undefined && words.get("side") === "key") ? "key" : "query";
  return patch;
}

/** What the address says of thresholds, scales, and the views that have something of their own in hand. */
function pickedOf(words, manifest) {
  const { threshold, scale } = firstState(manifest);
  const tensor = manifest.tensors?.find((one) => one.name === words.get("tensor"));
  return {
    threshold: THRESHOLDS.find((step) => String(step) === words.get("threshold")) ?? threshold,
    scale: words.get("scale") === "linear" ? "linear" : scale,
    ends: words.get("ends") === "one" ? "one" : "own",
    order: words.get("order") === "weight" ? "weight" : "text",
    tensor: tensor ? tensorOf(tensor.name, manifest.blocks[tensor.block].shape, words) : null,
    lens: cellOf(words.get("cell"), manifest.lens?.places.length, manifest.sequences.at(-1).tokens.length),
    diff: comparedOf(words.get("diff") ?? "", manifest),
  };
}

/** The cut through a tensor that the address names, and the number of it that is pinned. */
function tensorOf(name, shape, words) {
  const cut = cutFrom(words.get("cut") ?? "", shape);
  const { rows, columns } = cut ?? firstCut(shape);
  return { name, cut, ...cellOf(words.get("number"), shape[rows] ?? 1, shape[columns] ?? 1) };
}

/** Both lenses, "lens", and the cell of them that is pinned, "lens.3.2": of the places that both have. */
function comparedOf(word, manifest) {
  const [one, other] = [manifest, manifest.other].map((run) => run?.lens && { places: run.lens.places, tokens: run.sequences.at(-1).tokens.length });
  if (!one || !other || !/^lens(\.|$)/.test(word)) return null;
  const shared = one.places.filter((name) => other.places.includes(name)).length;
  return { of: "lens", ...(one.tokens === other.tokens && cellOf(word.slice("lens.".length), shared, one.tokens)) };
}

/** The cell that a word pins, such as "2.5", in a picture of so many rows and columns; null where it names none. */
function cellOf(word, rows, columns) {
  const [row, column] = /^(\d+)\.(\d+)$/.exec(word ?? "")?.slice(1).map(Number) ?? [];
  return row < rows && column < columns ? { row, column, pinned: true } : null;
}

/** The attention that the address names, by its layer's number in the model; -1 where there is none. */
function placeOf(words, manifest) {
  const places = words.has("of") ? groupPlaces(manifest, words.get("of")) : [...manifest.attentions.keys()];
  return places.find((place) => String(manifest.attentions[place].layer) === words.get("layer")) ?? -1;
}

/** Each head once, in order. */
function sorted(heads) {
  return [...new Set(heads)].sort((a, b) => a - b);
}

/** Goes to a head: with one head on it is replaced, with several it joins them. */
export function chooseHead(state, head) {
  const alone = state.heads.length <= 1;
  return { head, heads: alone ? [head] : sorted([...state.heads, head]) };
}

/** Turns a head on or off. */
export function toggleHead(state, head) {
  if (!state.heads.includes(head)) return { head, heads: sorted([...state.heads, head]) };
  const heads = state.heads.filter((other) => other !== head);
  return { heads, head: state.head === head && heads.length ? heads[0] : state.head };
}

/** Lets go of the token in hand. */
export const NO_TOKEN = { query: null, key: null, pinned: false };
