// state.js: the reader's choices as one plain object; every change goes through `set`, and the whole page is drawn from it.
// The part of it that is worth keeping is in the address (#layer=2&heads=8), so that a view can be bookmarked.
import { defaultSlicing, formatSlicing, parseSlicing } from "./numbers.js";
import { filterTokens, PAIRS } from "./tokens.js";

/**
 * @typedef {object} State
 * @property {string} view
 * @property {number} layer index in manifest.attentions
 * @property {number[]} heads the heads that are on
 * @property {number} head the head that numbers are read from
 * @property {string} pair
 * @property {number} threshold weights below it are not drawn as lines
 * @property {"sqrt"|"linear"} scale
 * @property {"own"|"one"} ends the end of the model grid's ramp: each head's largest weight, or 1
 * @property {"text"|"weight"} order of the keys in the neuron view
 * @property {"query"|"key"} side the column of the selected token
 * @property {number|null} query
 * @property {number|null} key
 * @property {boolean} pinned
 * @property {"heads"|"matrix"} [last] which of these two views was shown last
 */

/** Steps of the threshold. */
export const THRESHOLDS = [0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5];

/** @returns {State} */
export function firstState(manifest) {
  const { view, name, heads } = manifest.show;
  const layer = manifest.attentions.findIndex((entry) => entry.name === name);
  const twice = 2 / manifest.sequences[manifest.attentions[layer].keys].tokens.length; // the uniform weight
  return {
    view, layer, heads, head: heads[0], pair: "all",
    threshold: THRESHOLDS.findLast((step) => step <= Math.min(0.02, Math.max(0.001, twice))), scale: "sqrt", ends: "own", order: "text", side: "query", query: null, key: null, pinned: false,
  };
}

/**
 * Holds the state and calls `onChange` at most once per frame, however often it is set; `settle` does not wait for the frame.
 * @param {State} state
 * @param {import("./data.js").Manifest} manifest
 * @param {(state: State) => void} onChange
 */
export function createStore(state, manifest, onChange) {
  let waiting = false;
  state = { ...state, ...clampToRange(state, manifest) }; // an address may name a head outside its list
  const settle = () => {
    if (!waiting) return;
    waiting = false;
    onChange(state);
  };
  const set = (patch) => {
    state = { ...state, ...rememberView(state), ...resetTokens(state, patch, manifest), ...patch };
    state = { ...state, ...clampToRange(state, manifest), ...showSelected(state, manifest) };
    if (!waiting) requestAnimationFrame(settle);
    waiting = true;
  };
  return { get: () => state, set, settle };
}

/** Remembers the last view of a single attention, in which the model grid opens a head. */
function rememberView({ view }) {
  return view === "heads" || view === "matrix" ? { last: view } : {};
}

/** Resets the selected token and the pair filter where another attention has other tokens. */
function resetTokens(state, patch, manifest) {
  if (patch.layer === undefined || patch.layer === state.layer) return {};
  const [old, next] = [manifest.attentions[state.layer], manifest.attentions[patch.layer]];
  return old.queries === next.queries && old.keys === next.keys ? {} : { ...NO_TOKEN, pair: "all" };
}

/**
 * Another attention may have fewer heads, and the pointer may still be on tokens of the previous one. The head that
 * numbers are read from is always on, unless no head is.
 */
function clampToRange({ layer, head, heads, query, key }, manifest) {
  const { heads: count, queries, keys } = manifest.attentions[layer];
  const exist = (query ?? 0) < manifest.sequences[queries].tokens.length && (key ?? 0) < manifest.sequences[keys].tokens.length;
  const on = heads.some((each) => each >= count) ? heads.filter((each) => each < count) : heads;
  const now = head < count ? head : on.at(-1) ?? count - 1;
  return {
    head: now, heads: !on.length || on.includes(now) ? on : chooseHead({ heads: on }, now).heads,
    ...(exist ? {} : NO_TOKEN),
  };
}

/** Removes the pair filter where it would hide the selected token. */
function showSelected({ layer, pair, query, key }, manifest) {
  if (pair === "all") return {};
  const shown = filterTokens(tokensOf(manifest.attentions[layer], manifest), pair);
  const isShown = (side, token) => token === null || shown[side].includes(token);
  return isShown("query", query) && isShown("key", key) ? {} : { pair: "all" };
}

/** The tokens of the queries and of the keys. */
export function tokensOf({ queries, keys }, { sequences }) {
  return { query: sequences[queries].tokens, key: sequences[keys].tokens };
}

/** The kind of an attention as in the address: "", "encoder", "decoder", "cross". */
export function groupOf(entry) {
  return entry.kind === "cross" ? "cross" : entry.side;
}

/** Whether the page shows given weights, not a model's. @param {import("./data.js").Manifest} manifest */
export function hasGivenWeights({ model }) {
  return model.family === "";
}

/** The indices of all attentions of the same group, in order. */
export function groupIndices(manifest, group) {
  return [...manifest.attentions.keys()].filter((index) => groupOf(manifest.attentions[index]) === group);
}

/** The state as the text after # in the address, without default values. */
export function toHash(state, manifest) {
  const entry = manifest.attentions[state.layer];
  const params = { view: state.view, layer: entry.layer, heads: state.heads.join("."), head: state.head };
  if (groupOf(entry)) params.of = groupOf(entry);
  if (state.pair !== "all") params.pair = state.pair;
  if (state.pinned && state.query !== null) params.query = state.query;
  if (state.pinned && state.key !== null) params.key = state.key;
  if (params.query !== undefined && params.key !== undefined && state.side === "key") params.side = "key";
  const { threshold, scale } = firstState(manifest);
  if (state.threshold !== threshold) params.threshold = state.threshold;
  if (state.scale !== scale) params.scale = state.scale;
  if (state.ends !== "own") params.ends = state.ends;
  if (state.order !== "text") params.order = state.order;
  if (state.tensor) params.tensor = state.tensor.name;
  if (state.tensor?.slicing) params.cut = formatSlicing(state.tensor.slicing);
  if (state.tensor?.pinned) params.number = `${state.tensor.row}.${state.tensor.column}`;
  if (state.lens?.pinned) params.cell = `${state.lens.row}.${state.lens.column}`;
  if (state.diff?.of === "lens") params.diff = state.diff.pinned ? `lens.${state.diff.row}.${state.diff.column}` : "lens";
  return "#" + new URLSearchParams(params);
}

/**
 * The state from the address; what does not fit this model is ignored.
 * @param {string} hash
 * @param {import("./data.js").Manifest} manifest
 * @param {string[]} views
 * @param {number} layer the default index, unless the address names another
 * @returns {Partial<State>}
 */
export function fromHash(hash, manifest, views, layer) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (text, end) => (/^\d+$/.test(text ?? "") && Number(text) < end ? Number(text) : null);
  /** @type {Partial<State>} */
  const patch = { pair: "all", ...settingsFrom(params, manifest) }; // the default
  const index = entryIndexFrom(params, manifest);
  if (index >= 0) patch.layer = index;
  const entry = manifest.attentions[patch.layer ?? layer];
  if (views.includes(params.get("view"))) patch.view = params.get("view");
  const tokens = tokensOf(entry, manifest);
  const pair = params.get("pair");
  if (Object.hasOwn(PAIRS, pair ?? "") && entry.queries === entry.keys && Object.values(filterTokens(tokens, pair)).every((list) => list.length)) patch.pair = pair;
  const named = params.get("heads")?.split(".").map((text) => number(text, entry.heads)).filter((head) => head !== null);
  if (named?.length || params.get("heads") === "") patch.heads = sorted(named);
  const head = number(params.get("head"), entry.heads) ?? named?.[0] ?? null;
  if (head !== null) patch.head = head;
  const shown = filterTokens(tokens, patch.pair);
  for (const side of ["query", "key"]) {
    const token = number(params.get(side), tokens[side].length);
    if (token !== null && shown[side].includes(token)) Object.assign(patch, { [side]: token, pinned: true });
  }
  if (patch.pinned) patch.side = patch.query === undefined || (patch.key !== undefined && params.get("side") === "key") ? "key" : "query";
  return patch;
}

/** Thresholds, scales and the state of views with a selected cell of their own, from the address. */
function settingsFrom(params, manifest) {
  const { threshold, scale } = firstState(manifest);
  const tensor = manifest.tensors?.find((one) => one.name === params.get("tensor"));
  return {
    threshold: THRESHOLDS.find((step) => String(step) === params.get("threshold")) ?? threshold,
    scale: params.get("scale") === "linear" ? "linear" : scale,
    ends: params.get("ends") === "one" ? "one" : "own",
    order: params.get("order") === "weight" ? "weight" : "text",
    tensor: tensor ? tensorFrom(tensor.name, manifest.blocks[tensor.block].shape, params) : null,
    lens: cellFrom(params.get("cell"), manifest.lens?.points.length, manifest.sequences.at(-1).tokens.length),
    diff: diffFrom(params.get("diff") ?? "", manifest),
  };
}

/** The slice of a tensor that the address names, and its pinned number. */
function tensorFrom(name, shape, params) {
  const slicing = parseSlicing(params.get("cut") ?? "", shape);
  const { rows, columns } = slicing ?? defaultSlicing(shape);
  return { name, slicing, ...cellFrom(params.get("number"), shape[rows] ?? 1, shape[columns] ?? 1) };
}

/** Both lenses, "lens", and their pinned cell, "lens.3.2", among the layers that both have. */
function diffFrom(word, manifest) {
  const [one, other] = [manifest, manifest.other].map((run) => run?.lens && { points: run.lens.points, tokens: run.sequences.at(-1).tokens.length });
  if (!one || !other || !/^lens(\.|$)/.test(word)) return null;
  const shared = one.points.filter((name) => other.points.includes(name)).length;
  return { of: "lens", ...(one.tokens === other.tokens && cellFrom(word.slice("lens.".length), shared, one.tokens)) };
}

/** The cell that a word such as "2.5" pins, in a picture of so many rows and columns; null if there is none. */
function cellFrom(word, rows, columns) {
  const [row, column] = /^(\d+)\.(\d+)$/.exec(word ?? "")?.slice(1).map(Number) ?? [];
  return row < rows && column < columns ? { row, column, pinned: true } : null;
}

/** The attention that the address names, by its layer's index in the model; -1 if there is none. */
function entryIndexFrom(params, manifest) {
  const indices = params.has("of") ? groupIndices(manifest, params.get("of")) : [...manifest.attentions.keys()];
  return indices.find((index) => String(manifest.attentions[index].layer) === params.get("layer")) ?? -1;
}

/** Each head once, in order. */
function sorted(heads) {
  return [...new Set(heads)].sort((a, b) => a - b);
}

/** Chooses a head: it replaces the only one that is on, or joins several. */
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

/** A patch of the state that clears the selected token. */
export const NO_TOKEN = { query: null, key: null, pinned: false };
