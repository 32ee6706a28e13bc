// vectors.js: two vectors and their products as coloured strips, one cell per number and one strip below another, so that
// what is multiplied is in one column. Below them, the numbers of one such column.
import { make, prepareCanvas, setAttribute } from "./dom.js";
import { meanColour, signedRamp, signedStep, stepColour } from "./colour.js";
import { clampedStep } from "./selection.js";
import { exact } from "./tokens.js";

/** Pixels: the height of a strip, and the least width of a cell with a gap to the next. */
const [HEIGHT, MIN_GAPPED_CELL] = [20, 7];

/** @typedef {{theme: import("./colour.js").Theme, scale: "sqrt"|"linear"}} Appearance */

/**
 * Paints signed numbers side by side; NaN is grey.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} numbers
 * @param {{width: number, height: number, end: number} & Appearance} appearance `end` is the number at the ends of the ramp
 */
export function paintVector(canvas, numbers, { width, height, end, theme, scale }) {
  const context = prepareCanvas(canvas, width, height);
  const colours = signedRamp(theme);
  const cell = width / numbers.length;
  const gap = cell >= MIN_GAPPED_CELL ? 1 : 0;
  for (let dimension = 0; dimension < numbers.length; dimension++) {
    const [left, right] = [Math.round(dimension * cell), Math.round((dimension + 1) * cell)];
    context.fillStyle = Number.isNaN(numbers[dimension]) ? meanColour(theme) : stepColour(colours, signedStep(numbers[dimension], end, scale));
    context.fillRect(left, 0, Math.max(1, right - left - gap), height);
  }
}

/**
 * @typedef {object} Part one strip
 * @property {string} part its name in tests and styles
 * @property {string} name
 * @property {ArrayLike<number>} numbers
 * @property {number} end the number at the ends of the ramp
 */

export class Vectors {
  /** @param {(dimension: number|null) => void} point called when the pointer or the keyboard reaches a dimension */
  constructor(point) {
    this.point = point;
    /** @type {number|null} the selected dimension */
    this.dimension = null;
    this.rows = make("div", { class: "vectors-rows", onmousemove: (event) => point(this.dimensionAt(event)), onmouseleave: () => point(null) });
    this.band = make("div", { class: "vectors-band", hidden: true });
    this.element = make("div", { class: "vectors", tabindex: 0, role: "group", "aria-label": "both vectors, number by number; left and right arrows move along them" },
      this.rows, this.band);
    this.lines = [];
  }

  /** @param {Part[]} parts @param {Appearance} appearance */
  draw(parts, appearance) {
    if (parts.map(({ part }) => part).join() !== this.lines.map(({ part }) => part).join()) this.make(parts);
    this.parts = parts;
    const width = this.lines[0].canvas.parentElement.clientWidth;
    parts.forEach(({ numbers, end, name }, at) => {
      const { canvas, label } = this.lines[at];
      paintVector(canvas, numbers, { width, height: HEIGHT, end, ...appearance });
      if (label.textContent !== name) label.textContent = name;
      setAttribute(canvas, "aria-label", `${name}: ${numbers.length} numbers from −${exact(end)} to ${exact(end)}`);
    });
    this.drawDimension();
  }

  make(parts) {
    this.lines = parts.map(({ part }) => {
      const [label, canvas, number] = [make("span", { class: "vectors-name" }), make("canvas", { role: "img" }), make("span", { class: "vectors-number" })];
      const element = make("div", { class: "vectors-row", "data-part": part }, label, make("div", { class: "vectors-strip" }, canvas), number);
      return { part, label, canvas, number, element };
    });
    this.rows.replaceChildren(...this.lines.map(({ element }) => element));
  }

  /** The selected column, and its number beside each strip; without one, the end of each ramp. */
  drawDimension() {
    const { dimension } = this;
    const { clientWidth: width } = this.lines[0].canvas.parentElement;
    this.band.hidden = dimension === null;
    this.parts.forEach(({ numbers, end }, at) => {
      const text = dimension === null ? `up to ±${end.toPrecision(3)}` : exact(numbers[dimension]);
      setAttribute(this.lines[at].number, "data-exact", dimension !== null);
      if (this.lines[at].number.textContent !== text) this.lines[at].number.textContent = text;
    });
    if (dimension === null) return;
    const cell = width / this.parts[0].numbers.length;
    const left = this.lines[0].canvas.parentElement.offsetLeft + Math.round(dimension * cell);
    Object.assign(this.band.style, { left: `${left}px`, width: `${Math.max(2, Math.round(cell))}px` });
  }

  /** The dimension under the pointer. */
  dimensionAt(event) {
    const box = this.lines[0].canvas.getBoundingClientRect();
    const dimension = Math.floor(((event.clientX - box.left) / box.width) * this.parts[0].numbers.length);
    return dimension >= 0 && dimension < this.parts[0].numbers.length ? dimension : null;
  }

  /** Whether this is focused. */
  focused() {
    return document.activeElement === this.element;
  }

  /** @param {number} by */
  move(by) {
    const count = this.parts[0].numbers.length;
    this.point(clampedStep(this.dimension, by, count, by > 0 ? 0 : count - 1));
  }
}
