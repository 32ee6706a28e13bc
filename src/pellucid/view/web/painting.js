// painting.js: paints numbers as coloured cells, hatching and the colour ramp. One pixel per cell, then enlarged without smoothing, which would add colours.
import { make, prepareCanvas } from "./dom.js";
import { rampStep, stepColour } from "./colour.js";

/**
 * @typedef {object} Cells
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => number|null} step the ramp step of a cell, 0 to 255; null stays empty, NaN is `nanColour`
 * @property {Uint8ClampedArray} colours the ramp, from colour.js
 * @property {number[]} [nanColour] red, green and blue of NaN
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Cells} cells
 * @param {{left?: number, width: number, height: number}} box their position, in pixels
 */
export function paintCells(context, cells, { left = 0, width, height }) {
  const small = make("canvas", { width: cells.columns, height: cells.rows });
  small.getContext("2d").putImageData(toImage(cells), 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, 0, width, height);
}

/** Hatches everything that was left empty. */
export function hatch(context, width, height) {
  const tile = make("canvas", { width: 6, height: 6 });
  const pattern = tile.getContext("2d");
  pattern.strokeStyle = "#8888884d";
  pattern.lineWidth = 1;
  for (const shift of [-6, 0, 6]) {
    pattern.moveTo(shift, 6);
    pattern.lineTo(shift + 6, 0);
  }
  pattern.stroke();
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = context.createPattern(tile, "repeat");
  context.fillRect(0, 0, width, height);
  context.globalCompositeOperation = "source-over";
}

function toImage({ rows, columns, step, colours, nanColour }) {
  const image = new ImageData(columns, rows);
  for (let offset = 0, row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, offset += 4) {
      const colourStep = step(row, column);
      if (colourStep === null) continue;
      const colour = Number.isNaN(colourStep) ? nanColour : colours;
      const from = Number.isNaN(colourStep) ? 0 : 3 * colourStep;
      image.data[offset] = colour[from];
      image.data[offset + 1] = colour[from + 1];
      image.data[offset + 2] = colour[from + 2];
      image.data[offset + 3] = 255;
    }
  }
  return image;
}

/** The ramp itself, from 0 on the left to the largest weight on the right. The scale is applied to the weights, so this picture is always the same. */
export function paintRamp(canvas, colours) {
  const context = prepareCanvas(canvas, 128, 10);
  for (let x = 0; x < 128; x++) {
    context.fillStyle = stepColour(colours, rampStep(x, 127, "linear"));
    context.fillRect(x, 0, 1.5, 10);
  }
}
