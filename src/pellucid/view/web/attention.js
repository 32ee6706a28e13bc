// attention.js: the arithmetic of this page. Attention weights are not stored; they are computed here, when looked at:
//
//   score[j]  = query[i] · key[j] * scale        for every key j that query i may see
//   weight[j] = exp(score[j]) / sum of exp(score)    (softmax: the row adds up to 1)
//
// The stored numbers are float32 or float16; all sums run in float64.
import { Problem } from "./data.js";

/** Rows are kept once computed, up to this many numbers (64 MB). */
const CACHE_LIMIT = 8e6;

/** May query i see key j? */
const MASKS = {
  full: () => true,
  causal: (query, key) => key <= query,
};

/** The attention of one layer: every row of every head, on demand. */
export class Attention {
  /**
   * @param {import("./data.js").Source} source
   * @param {import("./data.js").Entry} entry
   */
  constructor(source, entry) {
    const shapes = source.manifest.blocks;
    this.entry = entry;
    this.query = source.block(entry.query);
    this.key = source.block(entry.key);
    const [heads, queries, size] = shapes[entry.query].shape;
    const [keyHeads, keys] = shapes[entry.key].shape;
    this.heads = heads;
    this.queries = queries;
    this.size = size;
    this.keyHeads = keyHeads;
    this.keys = keys;
    this.dtype = shapes[entry.query].dtype;
    this.mask = MASKS[entry.recipe.mask];
    if (!this.mask) throw new Problem(`The mask “${entry.recipe.mask}” is not known to this page: a newer pellucid can draw it.`);
    this.rows = new Map();
    this.cells = 0;
  }

  /** May this query look at this key at all? */
  sees(query, key) {
    return this.mask(query, key);
  }

  /** The weights of one query over all keys, exact. */
  row(head, query) {
    return this.kept(`${head}/${query}`, () => softmax(this.scores(head, query)));
  }

  /** The mean of that row over several heads. */
  meanRow(heads, query) {
    return this.kept(`${heads}/mean/${query}`, () => {
      const mean = new Float64Array(this.keys);
      for (const head of heads) this.row(head, query).forEach((weight, key) => (mean[key] += weight / heads.length));
      return mean;
    });
  }

  /** Scaled products of one query with every key; what the mask forbids is -Infinity. */
  scores(head, query) {
    const { size, keys } = this;
    const scale = this.entry.recipe.scale;
    const keyHead = Math.floor((head * this.keyHeads) / this.heads); // several heads may share one set of keys
    const from = (head * this.queries + query) * size;
    const scores = new Float64Array(keys).fill(-Infinity);
    for (let key = 0; key < keys; key++) {
      if (!this.mask(query, key)) continue;
      const to = (keyHead * keys + key) * size;
      let dot = 0;
      for (let place = 0; place < size; place++) dot += this.query[from + place] * this.key[to + place];
      scores[key] = dot * scale;
    }
    return scores;
  }

  kept(name, compute) {
    let row = this.rows.get(name);
    if (row) return row;
    row = compute();
    if ((this.cells += row.length) > CACHE_LIMIT) {
      this.rows.clear();
      this.cells = row.length;
    }
    this.rows.set(name, row);
    return row;
  }
}

/** In place: exp(score - largest score), divided by the sum. */
function softmax(scores) {
  let largest = -Infinity;
  for (const score of scores) if (score > largest) largest = score;
  let sum = 0;
  for (let key = 0; key < scores.length; key++) sum += scores[key] = Math.exp(scores[key] - largest);
  for (let key = 0; key < scores.length; key++) scores[key] /= sum;
  return scores;
}

/**
 * The place of the largest number among `places`.
 * @param {(place: number) => number} weight
 * @param {number[]} places
 */
export function strongest(weight, places) {
  return places.reduce((best, place) => (weight(place) > weight(best) ? place : best), places[0]);
}
