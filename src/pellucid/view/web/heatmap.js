// heatmap.js: numbers -> coloured cells. One pixel per cell, then enlarged without smoothing, so no colour is invented.
import { make, pen } from "./dom.js";
import { rampStep } from "./colour.js";

/**
 * @typedef {object} Cells
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => number|null} weight null may not be seen and is hatched; what is not finite is red
 * @property {number} largest the weight at the end of the ramp
 * @property {"sqrt"|"linear"} scale
 * @property {Uint8ClampedArray} colours the ramp, from colour.js
 */

/** The colour of what is not a number, on paper and on slate. */
const NOT_A_NUMBER = [196, 38, 54, 255];

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Cells} cells
 * @param {number} side of a cell, in pixels
 * @param {{row: number[], column: number[]}} gaps width of the gap before each row and column
 */
export function paintCells(canvas, cells, side, gaps) {
  const [width, height] = [cells.columns * side, cells.rows * side];
  const small = make("canvas", { width: cells.columns, height: cells.rows });
  small.getContext("2d").putImageData(toImage(cells), 0, 0);
  const context = pen(canvas, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, width, height);
  hatch(context, width, height);
  gaps.column.forEach((gap, place) => gap && context.clearRect(place * side - gap / 2, 0, gap, height));
  gaps.row.forEach((gap, place) => gap && context.clearRect(0, place * side - gap / 2, width, gap));
}

/** Fine lines behind all that was left empty. */
function hatch(context, width, height) {
  const tile = make("canvas", { width: 6, height: 6 });
  const pencil = tile.getContext("2d");
  pencil.strokeStyle = "#8888884d";
  pencil.lineWidth = 1;
  for (const shift of [-6, 0, 6]) {
    pencil.moveTo(shift, 6);
    pencil.lineTo(shift + 6, 0);
  }
  pencil.stroke();
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = context.createPattern(tile, "repeat");
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
}

function toImage({ rows, columns, weight, largest, scale, colours }) {
  const image = new ImageData(columns, rows);
  for (let place = 0, row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, place += 4) {
      const value = weight(row, column);
      if (value === null) continue;
      if (!Number.isFinite(value)) {
        image.data.set(NOT_A_NUMBER, place);
        continue;
      }
      const step = 3 * rampStep(value, largest, scale);
      image.data[place] = colours[step];
      image.data[place + 1] = colours[step + 1];
      image.data[place + 2] = colours[step + 2];
      image.data[place + 3] = 255;
    }
  }
  return image;
}

/** The ramp itself, from 0 on the left to the largest weight on the right. Colours follow the scale, so it always looks the same. */
export function paintRamp(canvas, colours) {
  const context = pen(canvas, 128, 10);
  for (let x = 0; x < 128; x++) {
    const step = 3 * rampStep(x, 127, "linear");
    context.fillStyle = `rgb(${colours[step]} ${colours[step + 1]} ${colours[step + 2]})`;
    context.fillRect(x, 0, 1.5, 10);
  }
}
