// lines.js: draws attention as lines between two columns. A large weight is a wide, opaque line.
import { pen } from "./dom.js";

/**
 * @typedef {object} Strand the lines of one colour
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
 * @property {boolean} few whether only the lines of one token are drawn
 * @property {number[]} queries the tokens whose lines are drawn
 * @property {number[]} keys
 * @property {(query: number) => number} from the height of a query's row on the canvas
 * @property {(key: number) => number} to the height of a key's row on the canvas
 */

/**
 * Draws all lines and sums their weights; those below 0 or not finite
 * count as 0.
 * @param {HTMLCanvasElement} canvas
 * @param {Strand[]} strands
 * @param {Frame} frame
 * @returns {{all: number, drawn: number, lines: number, below: boolean, broken: boolean, above: boolean}} sums of all weights (also below the
 *   threshold) and of those drawn; whether one is below 0, not finite, or drawn and above 1
 */
export function drawLines(canvas, strands, frame) {
  const context = pen(canvas, frame.width, frame.height);
  context.lineCap = "butt";
  const mass = { all: 0, drawn: 0, lines: 0, below: false, broken: false, above: false };
  for (const strand of strands) {
    context.strokeStyle = strand.colour;
    context.setLineDash(strand.dash);
    const draw = (query, key, weight) => {
      if (!Number.isFinite(weight)) return void (mass.broken = true);
      if (weight < 0) return void (mass.below = true);
      mass.all += weight;
      if (weight < frame.threshold || weight === 0) return;
      mass.drawn += weight;
      mass.above ||= weight > 1.001;
      mass.lines += 1;
      drawLine(context, frame.from(query) + strand.shift, frame.to(key) + strand.shift, frame, weight);
    };
    if (frame.keys.length === 1) {
      const [[key], column] = [frame.keys, strand.column(frame.keys[0])];
      for (const query of frame.queries) draw(query, key, column[query]);
    } else {
      for (const query of frame.queries) {
        const row = strand.row(query);
        for (const key of frame.keys) draw(query, key, row[key]);
      }
    }
  }
  return mass;
}

/** One line: an S curve with horizontal ends. Few lines are drawn stronger than many; weights above 1 as 1. */
function drawLine(context, from, to, { width, few }, size) {
  const weight = Math.min(1, size);
  context.globalAlpha = few ? 0.22 + 0.76 * Math.sqrt(weight) : 0.08 + 0.87 * weight ** 0.7;
  context.lineWidth = (few ? 1 : 0.7) + 7.5 * weight;
  context.beginPath();
  context.moveTo(0, from);
  context.bezierCurveTo(width * 0.42, from, width * 0.58, to, width, to);
  context.stroke();
}
