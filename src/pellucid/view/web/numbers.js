// numbers.js: a two-dimensional slice of a tensor, statistics of its numbers, and their export to other programs.

/**
 * @typedef {object} Slicing which two axes are drawn; the others are fixed
 * @property {number|null} rows an axis; null where the tensor has only one
 * @property {number|null} columns an axis
 * @property {number[]} fixed an index on every axis; ignored on the drawn ones
 */

/** A two-dimensional slice of the numbers of a tensor. */
export class Slice {
  /**
   * @param {{name: string, axes: string[]}} tensor
   * @param {number[]} shape
   * @param {ArrayLike<number>} values row by row
   * @param {Slicing} slicing
   */
  constructor(tensor, shape, values, slicing) {
    [this.tensor, this.shape, this.values, this.slicing] = [tensor, shape, values, slicing];
    this.strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((product, side) => product * side, 1));
    const size = (axis) => (axis === null ? 1 : shape[axis]);
    [this.rows, this.columns] = [size(slicing.rows), size(slicing.columns)];
    this.start = slicing.fixed.reduce((sum, index, axis) => sum + (axis === slicing.rows || axis === slicing.columns ? 0 : index * this.strides[axis]), 0);
    [this.down, this.right] = [slicing.rows === null ? 0 : this.strides[slicing.rows], slicing.columns === null ? 0 : this.strides[slicing.columns]];
  }

  at(row, column) {
    return this.values[this.start + row * this.down + column * this.right];
  }

  /** All numbers of a row. */
  row(row) {
    return Array.from({ length: this.columns }, (_, column) => this.at(row, column));
  }

  /** The indices of a cell in the trace's tensor, whose first axis is the batch, of the page's single text. */
  indices(row, column) {
    return [0, ...this.shape.map((_, axis) => (axis === this.slicing.rows ? row : axis === this.slicing.columns ? column : this.slicing.fixed[axis]))];
  }

  /**
   * The Python expression for this slice, or one number of it, of the trace.
   * @param {number|null} [row]
   * @param {number|null} [column]
   */
  python(row = null, column = null) {
    const { rows, columns } = this.slicing;
    const open = row === null || column === null;
    const index = open ? this.indices(":", ":") : this.indices(row, column);
    const transposed = open && rows !== null && rows > columns ? ".T" : "";
    return `trace["${this.tensor.name}"][${index.join(", ")}]${transposed}`;
  }

  /** The slice as np.array(...). */
  numpy() {
    const line = (row) => `[${this.row(row).map(pythonNumber).join(", ")}]`;
    const lines = Array.from({ length: this.rows }, (_, row) => line(row));
    const body = this.slicing.rows === null ? lines[0] : `[${lines.join(",\n          ")}]`;
    return `np.array(${this.slicing.columns === null ? pythonNumber(this.at(0, 0)) : body}, dtype=np.float32)`;
  }
}

/** The default slicing: the last two axes of size above 1. */
export function defaultSlicing(shape) {
  const axes = shape.map((side, axis) => (side > 1 ? axis : -1)).filter((axis) => axis >= 0);
  const [rows, columns] = axes.length > 1 ? axes.slice(-2) : [null, axes[0] ?? (shape.length ? shape.length - 1 : null)];
  return { rows, columns, fixed: shape.map(() => 0) };
}

/** A slicing as in the address: "5.r.c" is rows by columns at index 5 of the first axis. */
export function formatSlicing({ rows, columns, fixed }) {
  return fixed.map((index, axis) => (axis === rows ? "r" : axis === columns ? "c" : index)).join(".");
}

/**
 * The slicing that a text of the address describes; null where it does not fit a tensor of this shape.
 * @param {string} text
 * @param {number[]} shape
 * @returns {Slicing|null}
 */
export function parseSlicing(text, shape) {
  const parts = text.split(".");
  const axisOf = (letter) => parts.indexOf(letter);
  const fits = parts.length === shape.length && parts.every((part, axis) =>
    (part === "r" || part === "c" ? axisOf(part) === axis : /^\d+$/.test(part) && Number(part) < shape[axis]));
  if (!fits || axisOf("c") < 0 || (axisOf("r") < 0 && defaultSlicing(shape).rows !== null)) return null;
  return { rows: axisOf("r") < 0 ? null : axisOf("r"), columns: axisOf("c"), fixed: parts.map((part) => Number(part) || 0) };
}

/**
 * @typedef {{count: number, min: number, max: number, mean: number, deviation: number, nan: number, infinite: number}} Statistics
 *
 * Statistics of numbers; min, max, mean and deviation are those of the finite ones.
 * @param {ArrayLike<number>} values
 * @returns {Statistics}
 */
export function statisticsOf(values) {
  let [min, max, sum, nan, infinite] = [Infinity, -Infinity, 0, 0, 0];
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (Number.isNaN(value)) nan += 1;
    else if (value === Infinity || value === -Infinity) infinite += 1;
    else {
      if (value < min) min = value;
      if (value > max) max = value;
      sum += value;
    }
  }
  const finite = values.length - nan - infinite;
  const mean = sum / finite;
  let squares = 0;
  for (let index = 0; index < values.length; index++) if (Number.isFinite(values[index])) squares += (values[index] - mean) ** 2;
  return { count: values.length, min, max, mean, deviation: Math.sqrt(squares / finite), nan, infinite };
}

/** The range of some numbers, in words that follow "numbers". */
export function rangeText({ count, min, max, nan, infinite }) {
  return nan + infinite < count ? ` from ${shortest(min)} to ${shortest(max)}` : ", none of them finite";
}

/** A histogram of the finite numbers in even bins from minimum to maximum. */
export function histogram(values, { min, max }, bins) {
  const counts = new Array(bins).fill(0);
  const width = (max - min) / bins || 1;
  for (const value of values) if (Number.isFinite(value)) counts[Math.min(bins - 1, Math.floor((value - min) / width))] += 1;
  return counts;
}

/** The fewest digits that restore the same float32. */
export function shortest(value) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf").toLowerCase();
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const single = Math.fround(value);
  for (let digits = 4; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === single) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

function pythonNumber(value) {
  const text = shortest(value);
  if (Number.isNaN(value)) return "np.nan";
  return Number.isFinite(value) ? text : text.replace("inf", "np.inf");
}
