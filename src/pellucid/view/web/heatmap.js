// heatmap.js: a heat map of signed numbers, with names on two sides, a cross on the selected cell, and a pointer.
// Where there is no room for all cells they are pooled: a drawn cell shows the largest of several by absolute value.
import { make, prepareCanvas, scrollPageToCell, setAttribute } from "./dom.js";
import { ramp, rampStep, signedRamp, signedStep } from "./colour.js";
import { paintCells, paintRamp } from "./painting.js";
import { onPointer } from "./pointer.js";

/** Pixels: the largest cell, and the least distance between two names. */
const [MAX_CELL, MIN_LABEL_DISTANCE] = [28, 18];

/**
 * @typedef {object} HeatmapData
 * @property {string} key identifies the picture
 * @property {number} rows
 * @property {number} columns
 * @property {(row: number, column: number) => number} value NaN is drawn in `nanColour`, infinite values stay empty
 * @property {number[]} [nanColour] red, green and blue; by default black, or white on a dark page
 * @property {number} largest the absolute value at the end of the ramp
 * @property {boolean} signed whether there are numbers below 0
 * @property {"sqrt"|"linear"} scale
 * @property {{row: (row: number) => Node|string, column: (column: number) => Node|string}} names
 * @property {{row: string, column: string}} axes
 * @property {number} width the most in pixels
 * @property {number} height the most in pixels
 * @property {number} [maxSide] the largest side of a cell in pixels
 * @property {(context: CanvasRenderingContext2D, width: number, height: number) => void} [drawOver] draws over the cells
 */

export class Heatmap {
  /**
   * @param {{label: string, kind?: string, enter: (row: number, column: number) => void, press: (row: number, column: number) => void,
   *   leave: () => void}} listeners kind: the classes of the element
   */
  constructor({ kind = "sheet heat", ...listeners }) {
    this.canvas = make("canvas", { role: "img" });
    this.box = make("div", { class: "heat-cell" });
    this.labels = { row: make("div", { class: "labels query" }), column: make("div", { class: "labels key" }) };
    this.axes = { row: make("b", {}), column: make("b", {}) };
    const forward = (action) => (event) => {
      const cell = this.cellAt(event);
      if (cell) action(...cell);
    };
    this.plot = make("div", { class: "plot", tabindex: 0, role: "group", "aria-label": listeners.label,
      onclick: forward(listeners.press), ...onPointer({ move: forward(listeners.enter), leave: listeners.leave }) }, this.canvas, this.box);
    this.element = make("div", { class: kind },
      make("div", { class: "axes" }, make("div", {}, this.axes.column, " →"), make("div", {}, this.axes.row, " ↓")),
      this.labels.column, this.labels.row, this.plot);
  }

  /**
   * @param {HeatmapData} data
   * @param {{row: number|null, column: number|null, pinned: boolean, theme: import("./colour.js").Theme, description: string}} state
   */
  draw(data, state) {
    const pictureKey = [data.key, data.scale, data.width, data.height, state.theme, window.devicePixelRatio].join();
    if (pictureKey !== this.pictureKey) this.paint(data, state.theme);
    this.pictureKey = pictureKey;
    setAttribute(this.plot, "data-pinned", state.pinned);
    setAttribute(this.canvas, "aria-label", state.description);
    this.box.hidden = state.row === null;
    if (state.row === null) return;
    for (const [side, pixels] of Object.entries(this.cellBox(state.row, state.column))) this.box.style[side] = `${pixels}px`;
  }

  /** The box of the drawn cell of a number. */
  cellBox(row, column) {
    const { cell: { width, height }, pool } = this;
    return { left: Math.floor(column / pool.column) * width, top: Math.floor(row / pool.row) * height, width, height };
  }

  /** Focuses the plot, and scrolls a cell of it into view. */
  reveal(row, column) {
    this.plot.focus({ preventScroll: true });
    this.scrollToCell(row, column);
  }

  scrollToCell(row, column) {
    scrollPageToCell(this.plot, this.cellBox(row, column));
  }

  paint(data, theme) {
    this.data = data;
    this.pool = { row: Math.ceil(data.rows / data.height), column: Math.ceil(data.columns / data.width) };
    const [rows, columns] = [Math.ceil(data.rows / this.pool.row), Math.ceil(data.columns / this.pool.column)];
    const side = (room, count) => Math.max(1, Math.min(data.maxSide ?? MAX_CELL, Math.floor(room / count)));
    this.cell = { width: side(data.width, columns), height: side(data.height, rows) };
    const [width, height] = [columns * this.cell.width, rows * this.cell.height];
    const context = prepareCanvas(this.canvas, width, height);
    const colours = data.signed ? signedRamp(theme) : ramp(theme);
    const nanColour = data.nanColour ?? (theme === "dark" ? [255, 255, 255] : [0, 0, 0]);
    paintCells(context, { rows, columns, step: this.cellSteps(), colours, nanColour }, { width, height });
    data.drawOver?.(context, width, height);
    for (const axis of ["row", "column"]) {
      this.axes[axis].textContent = data.axes[axis];
      this.axes[axis].parentElement.hidden = !data.axes[axis]; // a vector has one
      this.writeLabels(axis);
    }
  }

  /** The ramp step of a drawn cell, by its row and column. */
  cellSteps() {
    const { largest, signed, scale, value } = this.data;
    const shown = this.poolingNote() ? (row, column) => value(...this.largestCell(row, column)) : value;
    const stepOf = signed ? signedStep : rampStep;
    return (row, column) => {
      const number = shown(row, column);
      if (number === Infinity || number === -Infinity) return null;
      return Number.isNaN(number) ? NaN : stepOf(number, largest, scale);
    };
  }

  /** The cell that a drawn cell shows: the first NaN, so that it is visible, else the largest absolute value. */
  largestCell(row, column) {
    const { pool, data } = this;
    let [best, size] = [[row * pool.row, column * pool.column], -1];
    for (let y = row * pool.row; y < Math.min(data.rows, (row + 1) * pool.row); y++) {
      for (let x = column * pool.column; x < Math.min(data.columns, (column + 1) * pool.column); x++) {
        const value = Math.abs(data.value(y, x));
        if (Number.isNaN(value)) return [y, x];
        if (value > size && value !== Infinity) [best, size] = [[y, x], value];
      }
    }
    return best;
  }

  writeLabels(axis) {
    const [pool, count, side] = [this.pool[axis], this.data[`${axis}s`], this.cellSide(axis)];
    const plain = typeof this.data.names[axis](0) === "string";
    const step = plain && side < MIN_LABEL_DISTANCE ? roundStep((1.6 * MIN_LABEL_DISTANCE * pool) / side) : Math.ceil(MIN_LABEL_DISTANCE / side) * pool;
    const labels = Array.from({ length: Math.ceil(count / step) }, (_, at) => this.label(axis, at * step));
    this.labels[axis].replaceChildren(...labels);
  }

  /** The name of a row or a column, at its position. */
  label(axis, index) {
    const element = make("div", { class: "label", "data-place": index }, this.data.names[axis](index));
    element.style[axis === "row" ? "top" : "left"] = `${(Math.floor(index / this.pool[axis]) + 0.5) * this.cellSide(axis)}px`;
    return element;
  }

  cellSide(axis) {
    return axis === "row" ? this.cell.height : this.cell.width;
  }

  /** The cell under the pointer. */
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / this.cell.height);
    const column = Math.floor((event.clientX - box.left) / this.cell.width);
    const inside = row >= 0 && column >= 0 && row * this.pool.row < this.data.rows && column * this.pool.column < this.data.columns;
    return inside ? this.largestCell(row, column) : null;
  }

  /** The sentence of the legend about pooling. */
  poolingNote() {
    const { row, column } = this.pool;
    return row * column === 1 ? "" : `Each cell drawn is the largest of ${row} × ${column} numbers by absolute value.`;
  }
}

/** The next of 1, 2, 5, 10, 20, 50, ... */
function roundStep(least) {
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((part) => part * ten).find((step) => step >= least);
}

/** A ramp with the values at its ends, for the toolbar. */
export class ColourBar {
  constructor() {
    this.canvas = make("canvas", { class: "ramp", "aria-hidden": "true" });
    this.low = make("span", {});
    this.high = make("span", { class: "end" });
    this.element = make("div", { class: "field" }, this.low, this.canvas, this.high);
  }

  /** @param {number} largest @param {boolean} signed @param {import("./colour.js").Theme} theme @param {string} [unit] */
  draw(largest, signed, theme, unit = "") {
    paintRamp(this.canvas, signed ? signedRamp(theme) : ramp(theme));
    const end = String(Number(largest.toPrecision(4)));
    this.low.textContent = signed ? `−${end}` : "0";
    this.high.textContent = end + unit;
  }
}
