// lines.js: draws attention as lines between two columns. A large weight is a wide, opaque line.
import { prepareCanvas } from "./dom.js";

/**
 * @typedef {object} LineSeries the lines of one colour
 * @property {string} colour
 * @property {number[]} dash
 * @property {number} shift pixels up or down, so that the lines of two heads do not overlap
 * @property {(query: number) => Float64Array} row weights of one query
 * @property {(key: number) => Float64Array} column weights of one key
 *
 * @typedef {object} Frame the contents of the canvas
 * @property {number} width
 * @property {number} height
 * @property {number} threshold
 * @property {boolean} oneToken whether only the lines of one token are drawn
 * @property {number[]} queries the tokens whose lines are drawn
 * @property {number[]} keys
 * @property {(query: number) => number} from the height of a query's row on the canvas
 * @property {(key: number) => number} to the height of a key's row on the canvas
 */

/**
 * Draws all lines and sums their weights; those below 0 or not finite
 * count as 0.
 * @param {HTMLCanvasElement} canvas
 * @param {LineSeries[]} series
 * @param {Frame} frame
 * @returns {{all: number, drawn: number, lines: number, hasNegative: boolean, hasNonFinite: boolean, hasAboveOne: boolean}} sums of all weights (also below the
 *   threshold) and of those drawn; whether one is below 0, not finite, or drawn and above 1
 */
export function drawLines(canvas, series, frame) {
  const context = prepareCanvas(canvas, frame.width, frame.height);
  context.lineCap = "butt";
  const totals = { all: 0, drawn: 0, lines: 0, hasNegative: false, hasNonFinite: false, hasAboveOne: false };
  for (const one of series) {
    context.strokeStyle = one.colour;
    context.setLineDash(one.dash);
    const draw = (query, key, weight) => {
      if (!Number.isFinite(weight)) return void (totals.hasNonFinite = true);
      if (weight < 0) return void (totals.hasNegative = true);
      totals.all += weight;
      if (weight < frame.threshold || weight === 0) return;
      totals.drawn += weight;
      totals.hasAboveOne ||= weight > 1.001;
      totals.lines += 1;
      drawLine(context, frame.from(query) + one.shift, frame.to(key) + one.shift, frame, weight);
    };
    if (frame.keys.length === 1) {
      const [[key], column] = [frame.keys, one.column(frame.keys[0])];
      for (const query of frame.queries) draw(query, key, column[query]);
    } else {
      for (const query of frame.queries) {
        const row = one.row(query);
        for (const key of frame.keys) draw(query, key, row[key]);
      }
    }
  }
  return totals;
}

/** One line: an S curve with horizontal ends. Few lines are drawn stronger than many; weights above 1 as 1. */
function drawLine(context, from, to, { width, oneToken }, size) {
  const weight = Math.min(1, size);
  context.globalAlpha = oneToken ? 0.22 + 0.76 * Math.sqrt(weight) : 0.08 + 0.87 * weight ** 0.7;
  context.lineWidth = (oneToken ? 1 : 0.7) + 7.5 * weight;
  context.beginPath();
  context.moveTo(0, from);
  context.bezierCurveTo(width * 0.42, from, width * 0.58, to, width, to);
  context.stroke();
}
