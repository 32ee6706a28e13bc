// neurondetails.js: details beside the numbers of the neuron view: which heads share keys, the ends of the colour ramps, the rotation.
import { make } from "./dom.js";
import { exact } from "./tokens.js";

/**
 * For example "Heads 0 to 2 share key head 0."
 * @param {import("./attention.js").Attention} attention
 * @param {number} head
 */
export function sharedKeyHead(attention, head) {
  const mine = attention.keyHead(head);
  const heads = [...Array(attention.heads).keys()].filter((other) => attention.keyHead(other) === mine);
  return heads.length > 1 ? `Heads ${heads[0]} to ${heads.at(-1)} share key head ${mine}.` : "";
}

/**
 * The largest finite absolute values of this query, of all keys of its head, and of all their products.
 * @param {import("./attention.js").Attention} attention
 * @param {number} head
 * @param {number} query
 * @returns {{query: number, key: number, product: number}}
 */
export function rampEnds(attention, head, query) {
  const { size, keys } = attention;
  const from = { query: (head * attention.queries + query) * size, key: attention.keyHead(head) * keys * size };
  const ends = { query: largestOf(attention.unrotated.query, from.query, size, 1), key: largestOf(attention.unrotated.key, from.key, size * keys, 1), product: 0 };
  for (let dimension = 0; dimension < size; dimension++) {
    const mine = largestOf(attention.query, from.query + dimension, 1, 1);
    const theirs = largestOf(attention.key, from.key + dimension, keys * size - dimension, size);
    ends.query = Math.max(ends.query, mine);
    ends.key = Math.max(ends.key, theirs);
    ends.product = Math.max(ends.product, mine * theirs);
  }
  return ends;
}

function largestOf(numbers, from, count, step) {
  let largest = 0;
  for (let at = from; at < from + count; at += step) {
    const size = Math.abs(numbers[at]);
    if (size > largest && size < Infinity) largest = size;
  }
  return largest;
}

/**
 * How rotation produced the two numbers of one dimension; empty without rotation.
 * @param {import("./app.js").Page} page
 * @param {import("./chain.js").Steps} steps
 * @param {{query: number, key: number}} pair
 * @param {number} dimension the dimension
 */
export function rotationSteps(page, steps, pair, dimension) {
  const { rotation } = page.attention().recipe;
  if (!rotation) return [];
  const table = page.source.block(rotation);
  const half = steps.query.length / 2;
  const partner = dimension < half ? dimension + half : dimension - half;
  return ["query", "key"].map((side) => {
    const at = pair[side] * half + (dimension % half);
    const [cosine, sine, before] = [table[at], table[table.length / 2 + at], steps[`${side}Before`]];
    const number = (value) => make("b", {}, exact(value));
    return make("p", { class: "neuron-turn", "data-side": side }, `${side}, rotated with dimension ${partner}: `, number(before[dimension]), " × cosine ", number(cosine),
      dimension < half ? " − " : " + ", number(before[partner]), " × sine ", number(sine), " = ", number(steps[side][dimension]));
  });
}
