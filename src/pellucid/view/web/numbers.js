// numbers.js: a two-dimensional slice of a tensor, statistics of its numbers, and their export to other programs.

/**
 * @typedef {object} Cut two axes are drawn, the others are fixed
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
   * @param {Cut} cut
   */
  constructor(tensor, shape, values, cut) {
    [this.tensor, this.shape, this.values, this.cut] = [tensor, shape, values, cut];
    this.strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((product, side) => product * side, 1));
    const size = (axis) => (axis === null ? 1 : shape[axis]);
    [this.rows, this.columns] = [size(cut.rows), size(cut.columns)];
    this.start = cut.fixed.reduce((sum, place, axis) => sum + (axis === cut.rows || axis === cut.columns ? 0 : place * this.strides[axis]), 0);
    [this.down, this.right] = [cut.rows === null ? 0 : this.strides[cut.rows], cut.columns === null ? 0 : this.strides[cut.columns]];
  }

  at(row, column) {
    return this.values[this.start + row * this.down + column * this.right];
  }

  /** All numbers of a row. */
  row(row) {
    return Array.from({ length: this.columns }, (_, column) => this.at(row, column));
  }

  /** The indices of a cell in the trace's tensor, whose first axis is the batch, of the page's single text. */
  places(row, column) {
    return [0, ...this.shape.map((_, axis) => (axis === this.cut.rows ? row : axis === this.cut.columns ? column : this.cut.fixed[axis]))];
  }

  /**
   * The Python expression for this slice, or one number of it, of the trace.
   * @param {number|null} [row]
   * @param {number|null} [column]
   */
  python(row = null, column = null) {
    const { rows, columns, fixed } = this.cut;
    const open = row === null || column === null;
    const place = (axis) => (axis !== rows && axis !== columns ? fixed[axis] : open ? ":" : axis === rows ? row : column);
    const index = [0, ...this.shape.map((_, axis) => place(axis))];
    const turned = open && rows !== null && rows > columns ? ".T" : "";
    return `trace["${this.tensor.name}"][${index.join(", ")}]${turned}`;
  }

  /** The slice as np.array(...). */
  numpy() {
    const line = (row) => `[${this.row(row).map(pythonNumber).join(", ")}]`;
    const lines = Array.from({ length: this.rows }, (_, row) => line(row));
    const body = this.cut.rows === null ? lines[0] : `[${lines.join(",\n          ")}]`;
    return `np.array(${this.cut.columns === null ? pythonNumber(this.at(0, 0)) : body}, dtype=np.float32)`;
  }
}

/** The axes that are drawn first: the last two of size above 1. */
export function firstCut(shape) {
  const wide = shape.map((side, axis) => (side > 1 ? axis : -1)).filter((axis) => axis >= 0);
  const [rows, columns] = wide.length > 1 ? wide.slice(-2) : [null, wide[0] ?? (shape.length ? shape.length - 1 : null)];
  return { rows, columns, fixed: shape.map(() => 0) };
}

/** A slice as in the address: "5.r.c" is rows by columns at index 5 of the first axis. */
export function cutWords({ rows, columns, fixed }) {
  return fixed.map((place, axis) => (axis === rows ? "r" : axis === columns ? "c" : place)).join(".");
}

/**
 * The slice that these words name; null where they do not fit a tensor of this shape.
 * @param {string} words
 * @param {number[]} shape
 * @returns {Cut|null}
 */
export function cutFrom(words, shape) {
  const places = words.split(".");
  const drawn = (letter) => places.indexOf(letter);
  const fits = places.length === shape.length && places.every((word, axis) =>
    (word === "r" || word === "c" ? drawn(word) === axis : /^\d+$/.test(word) && Number(word) < shape[axis]));
  if (!fits || drawn("c") < 0 || (drawn("r") < 0 && firstCut(shape).rows !== null)) return null;
  return { rows: drawn("r") < 0 ? null : drawn("r"), columns: drawn("c"), fixed: places.map((word) => Number(word) || 0) };
}

/**
 * @typedef {{count: number, least: number, most: number, mean: number, deviation: number, nan: number, infinite: number}} Facts
 *
 * Statistics of numbers; least, most, mean and deviation are those of the finite ones.
 * @param {ArrayLike<number>} values
 * @returns {Facts}
 */
export function factsOf(values) {
  let [least, most, sum, nan, infinite] = [Infinity, -Infinity, 0, 0, 0];
  for (let place = 0; place < values.length; place++) {
    const value = values[place];
    if (Number.isNaN(value)) nan += 1;
    else if (value === Infinity || value === -Infinity) infinite += 1;
    else {
      if (value < least) least = value;
      if (value > most) most = value;
      sum += value;
    }
  }
  const finite = values.length - nan - infinite;
  const mean = sum / finite;
  let squares = 0;
  for (let place = 0; place < values.length; place++) if (Number.isFinite(values[place])) squares += (values[place] - mean) ** 2;
  return { count: values.length, least, most, mean, deviation: Math.sqrt(squares / finite), nan, infinite };
}

/** The range of some numbers, in words that follow "numbers". */
export function span({ count, least, most, nan, infinite }) {
  return nan + infinite < count ? ` from ${shortest(least)} to ${shortest(most)}` : ", none of them finite";
}

/** A histogram of the finite numbers in even bins from minimum to maximum. */
export function histogram(values, { least, most }, steps) {
  const counts = new Array(steps).fill(0);
  const width = (most - least) / steps || 1;
  for (const value of values) if (Number.isFinite(value)) counts[Math.min(steps - 1, Math.floor((value - least) / width))] += 1;
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
