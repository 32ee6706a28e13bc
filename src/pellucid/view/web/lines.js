// lines.js: draws attention as lines between two columns. A heavy weight is a broad, strong line.
import { pen } from "./dom.js";

/**
 * @typedef {object} Strand the lines of one colour
 * @property {string} colour
 * @property {number[]} dash
 * @property {number} shift pixels up or down, so that the lines of two heads do not cover each other
 * @property {(query: number) => Float64Array} row weights of one query
 * @property {(key: number) => Float64Array} column weights of one key
 *
 * @typedef {object} Frame what the canvas shows
 * @property {number} width
 * @property {number} height
 * @property {number} threshold
 * @property {boolean} few only the lines of one token
 * @property {number[]} queries tokens whose lines are wanted
 * @property {number[]} keys
 * @property {(query: number) => number} from height of a query's row on the canvas
 * @property {(key: number) => number} to height of a key's row on the canvas
 */

/**
 * Draws all lines and says how much weight they hold; weights below 0 count as none, and so do
 * those that are not finite.
 * @param {HTMLCanvasElement} canvas
 * @param {Strand[]} strands
 * @param {Frame} frame
 * @returns {{all: number, drawn: number, lines: number, below: boolean, broken: boolean, above: boolean}} summed weights, below the
 *   threshold too; is one below 0, is one not finite, is one drawn that is above 1?
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

/** One line: an S that leaves and arrives level. Few lines can be stronger than many; of weights above 1 none is. */
function drawLine(context, from, to, { width, few }, size) {
  const weight = Math.min(1, size);
  context.globalAlpha = few ? 0.22 + 0.76 * Math.sqrt(weight) : 0.08 + 0.87 * weight ** 0.7;
  context.lineWidth = (few ? 1 : 0.7) + 7.5 * weight;
  context.beginPath();
  context.moveTo(0, from);
  context.bezierCurveTo(width * 0.42, from, width * 0.58, to, width, to);
  context.stroke();
}
