// attention.js: the arithmetic of this page. As a rule attention weights are not stored; they are computed here, when looked at:
//
//   score[i,j]  = (turn(query[i], i) · turn(key[j], j)) * scale + bias[j - i]    for every key j that query i may see
//   weight[i,j] = exp(score[i,j]) / sum over j of exp(score[i,j])                (softmax: the row adds up to 1)
//
// The stored numbers are float32 or float16; all sums run in float64. Where weights were stored, they are read as they are.
import { Problem } from "./data.js";

/** Rows are kept once computed, up to this many numbers (80 MB): two heads of 2,048 tokens, since what a key receives needs all rows. */
const CACHE_LIMIT = 1e7;

/** May query i see key j? */
const MASKS = {
  full: () => true,
  causal: (query, key) => key <= query,
  window: (query, key, window) => key <= query && key > query - window,
};

/** One attention of the model: every row of every head, on demand. */
export class Attention {
  /**
   * @param {import("./data.js").Source} source
   * @param {import("./data.js").Entry} entry its blocks must be loaded
   */
  constructor(source, entry) {
    if (!hasNumbers(entry)) throw new Problem(`The numbers of ${entry.name} were left out to keep this page small; its picture is in the view of the whole model.`);
    this.entry = entry;
    this.heads = entry.heads;
    this.keyHeads = entry.key_heads;
    this.stored = Boolean(entry.weights);
    const [queries, keys, size] = shapeOf(source.manifest.blocks, entry);
    [this.queries, this.keys, this.size] = [queries, keys, size];
    const shape = source.manifest.blocks[entry.weights ?? entry.query];
    [this.dtype, this.coding] = [shape.dtype, shape.coding];
    this.recipe = entry.recipe;
    this.mask = MASKS[entry.recipe.mask];
    if (!this.mask) throw new Problem(`The mask “${entry.recipe.mask}” is not known to this page: a newer pellucid can draw it.`);
    const block = (name) => (name ? source.block(name) : null);
    this.weights = block(entry.weights);
    this.bias = block(entry.recipe.bias);
    this.rotation = block(entry.recipe.rotation);
    this.before = { query: block(entry.query), key: block(entry.key) };
    this.query = this.turned(this.before.query, queries);
    this.key = this.turned(this.before.key, keys);
    this.rows = new Map();
    this.cells = 0;
  }

  /** May this query look at this key at all? */
  sees(query, key) {
    return this.mask(query, key, this.recipe.window);
  }

  /** Several heads may share one set of keys. */
  keyHead(head) {
    return Math.floor((head * this.keyHeads) / this.heads);
  }

  /** The weights of one query over all keys. */
  row(head, query) {
    return this.kept(`${head}/${query}`, () => (this.stored ? this.storedRow(head, query) : softmax(this.scores(head, query))));
  }

  storedRow(head, query) {
    const from = (head * this.queries + query) * this.keys;
    return Float64Array.from(this.weights.subarray(from, from + this.keys));
  }

  /** The mean of that row over several heads. */
  meanRow(heads, query) {
    return this.kept(`${heads}/mean/${query}`, () => {
      const mean = new Float64Array(this.keys);
      for (const head of heads) this.row(head, query).forEach((weight, key) => (mean[key] += weight / heads.length));
      return mean;
    });
  }

  /** The scores of one query with every key; what the mask forbids is -Infinity. Null where only weights were stored. */
  scores(head, query) {
    if (!this.query || !this.key) return null;
    const { size, keys } = this;
    const scale = this.recipe.scale;
    const from = (head * this.queries + query) * size;
    const keyHead = this.keyHead(head);
    const scores = new Float64Array(keys).fill(-Infinity);
    for (let key = 0; key < keys; key++) {
      if (!this.sees(query, key)) continue;
      const to = (keyHead * keys + key) * size;
      let dot = 0;
      for (let place = 0; place < size; place++) dot += this.query[from + place] * this.key[to + place];
      scores[key] = dot * scale + this.biasOf(head, query, key);
    }
    return scores;
  }

  /** What is added to a score for the distance of the two tokens. */
  biasOf(head, query, key) {
    return this.bias ? this.bias[head * (this.queries + this.keys - 1) + key - query + this.queries - 1] : 0;
  }

  /**
   * One weight, taken apart. Null where only weights were stored.
   * @returns {null|{queryBefore: Float32Array|null, keyBefore: Float32Array|null, query: Float64Array|Float32Array,
   *   key: Float64Array|Float32Array, products: Float64Array, sum: number, scale: number, scaled: number, bias: number, score: number,
   *   seen: boolean, largest: number, exponential: number, total: number, weight: number}}
   */
  steps(head, query, key) {
    const scores = this.scores(head, query);
    if (!scores) return null;
    const { size } = this;
    const at = { query: (head * this.queries + query) * size, key: (this.keyHead(head) * this.keys + key) * size };
    const part = (numbers, side) => numbers.slice(at[side], at[side] + size);
    const [left, right] = [part(this.query, "query"), part(this.key, "key")];
    const products = Float64Array.from({ length: size }, (_, place) => left[place] * right[place]);
    const sum = products.reduce((total, product) => total + product, 0);
    const [seen, scale, bias] = [this.sees(query, key), this.recipe.scale, this.biasOf(head, query, key)];
    const largest = largestOf(scores);
    const exponential = Math.exp(scores[key] - largest);
    return {
      queryBefore: this.rotation && part(this.before.query, "query"), keyBefore: this.rotation && part(this.before.key, "key"),
      query: left, key: right, products, sum, scale, scaled: sum * scale, bias, score: scores[key], seen, largest, exponential,
      total: scores.reduce((total, score) => total + Math.exp(score - largest), 0), weight: this.row(head, query)[key],
    };
  }

  /** Rotary positions: the pair (c, c + size/2) of each vector is turned by the angle of its token. */
  turned(vectors, tokens) {
    if (!this.rotation || !vectors) return vectors;
    const half = this.size / 2;
    const sines = this.rotation.length / 2;
    const result = new Float64Array(vectors.length);
    for (let from = 0, row = 0; from < vectors.length; from += this.size, row++) {
      const angle = (row % tokens) * half;
      for (let place = 0; place < half; place++) {
        const [cosine, sine] = [this.rotation[angle + place], this.rotation[sines + angle + place]];
        const [a, b] = [vectors[from + place], vectors[from + half + place]];
        result[from + place] = a * cosine - b * sine;
        result[from + half + place] = b * cosine + a * sine;
      }
    }
    return result;
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

/** Queries, keys and places of a vector, from whichever blocks there are. */
function shapeOf(shapes, entry) {
  if (entry.weights) return [shapes[entry.weights].shape[1], shapes[entry.weights].shape[2], shapes[entry.query]?.shape[2] ?? 0];
  return [shapes[entry.query].shape[1], shapes[entry.key].shape[1], shapes[entry.query].shape[2]];
}

function largestOf(scores) {
  let largest = -Infinity;
  for (const score of scores) if (score > largest) largest = score;
  return largest;
}

/** In place: exp(score - largest score), divided by the sum. */
function softmax(scores) {
  const largest = largestOf(scores);
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

/** Does the page hold what the weights come from? @param {import("./data.js").Entry} entry */
export function hasNumbers(entry) {
  return Boolean(entry.weights || (entry.query && entry.key));
}

/** The blocks that an attention is computed from. @param {import("./data.js").Entry} entry @returns {string[]} */
export function blocksOf(entry) {
  return [entry.weights, entry.query, entry.key, entry.recipe.bias, entry.recipe.rotation].filter((name) => typeof name === "string");
}
