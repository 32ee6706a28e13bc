// thumbs.js: the thumbnails of the model grid, all heads of one layer side by side on one canvas.
// A thumbnail is the max-pooled matrix of a head: each cell is the largest weight of a patch, so no strong link is lost.
import { prepareCanvas } from "./dom.js";
import { rampStep } from "./colour.js";
import { paintCells } from "./painting.js";

/**
 * @typedef {object} Thumbs the thumbnails of one layer
 * @property {Float32Array} weights heads × rows × columns
 * @property {number} heads
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => boolean} masked whether no query of this patch may attend to any of its keys
 *
 * @typedef {object} Appearance
 * @property {number} width of one thumbnail, in page pixels
 * @property {number} height
 * @property {number} step from one thumbnail to the next
 * @property {number|null} end the weight at the end of the ramp; null is the largest of each head
 * @property {"sqrt"|"linear"} scale
 * @property {Uint8ClampedArray} colours the ramp, from colour.js
 */

/**
 * @param {import("./data.js").Source} source
 * @param {import("./data.js").Entry} entry
 * @returns {Thumbs}
 */
export function thumbsOf({ manifest, block }, entry) {
  const [heads, rows, columns] = manifest.blocks[entry.thumb].shape;
  const [queries, keys] = [entry.queries, entry.keys].map((side) => manifest.sequences[side].tokens.length);
  const { mask, window = 0 } = entry.recipe;
  const masked = (row, column) => {
    const [firstQuery, lastQuery] = patch(row, queries / rows);
    const [firstKey, lastKey] = patch(column, keys / columns);
    if (mask !== "full" && firstKey > lastQuery) return true;
    return mask === "window" && lastKey <= firstQuery - window;
  };
  return { weights: block(entry.thumb), heads, rows, columns, masked };
}

/** The first and the last token of a patch. */
function patch(index, size) {
  return [Math.floor(index * size), Math.ceil((index + 1) * size) - 1];
}

/**
 * The approximate largest weight of one head; NaN where a weight is NaN.
 * @param {import("./data.js").Entry} entry
 * @param {Thumbs} thumbs
 * @param {number} head
 */
export function largestOf({ beyond = {} }, thumbs, head) {
  return head in beyond ? Number(beyond[head]) : largestIn(thumbs, head);
}

/** The largest weight in the thumbnail of one head. */
function largestIn({ weights, rows, columns }, head) {
  const from = head * rows * columns;
  return weights.subarray(from, from + rows * columns).reduce((most, weight) => Math.max(most, weight), 0);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Thumbs} thumbs
 * @param {Appearance} appearance
 */
export function paintThumbs(canvas, thumbs, appearance) {
  const { width, height, step, end } = appearance;
  const context = prepareCanvas(canvas, thumbs.heads * step, height);
  const density = window.devicePixelRatio || 1;
  const [rows, columns] = [Math.min(thumbs.rows, Math.round(height * density)), Math.min(thumbs.columns, Math.round(width * density))];
  for (let head = 0; head < thumbs.heads; head++) {
    const cells = cellsOf(thumbs, head, rows, columns, { ...appearance, end: end ?? largestIn(thumbs, head) });
    paintCells(context, cells, { left: head * step, width, height });
  }
}

/** One thumbnail at one pixel per cell; max-pooled again where the screen has fewer pixels. */
function cellsOf(thumbs, head, rows, columns, { end, scale, colours }) {
  const pooled = new Float32Array(rows * columns).fill(-1);
  for (let row = 0, at = head * thumbs.rows * thumbs.columns; row < thumbs.rows; row++) {
    const line = Math.floor((row * rows) / thumbs.rows) * columns;
    for (let column = 0; column < thumbs.columns; column++, at++) {
      const index = line + Math.floor((column * columns) / thumbs.columns);
      if (thumbs.weights[at] > pooled[index] && !thumbs.masked(row, column)) pooled[index] = thumbs.weights[at];
    }
  }
  const step = (row, column) => {
    const weight = pooled[row * columns + column];
    return weight < 0 ? null : rampStep(weight, end, scale);
  };
  return { rows, columns, step, colours };
}
