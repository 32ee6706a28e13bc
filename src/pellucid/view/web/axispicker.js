// axispicker.js: which two axes of a tensor are drawn, and where the others are fixed.
import { button, make } from "./dom.js";

export class AxisPicker {
  /** @param {(slicing: import("./numbers.js").Slicing) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.element = make("div", { class: "axis-picker" });
  }

  /**
   * @param {string[]} axes names
   * @param {import("./numbers.js").Slice} slice
   */
  draw(axes, { shape, slicing, tensor }) {
    const drawn = JSON.stringify([tensor.name, shape, slicing.rows, slicing.columns]);
    this.slicing = slicing;
    if (drawn !== this.drawn) this.fill(axes, shape);
    this.drawn = drawn;
    for (const input of this.element.querySelectorAll("input")) input.value = String(slicing.fixed[Number(input.dataset.axis)]);
  }

  fill(axes, shape) {
    const fixed = axes.map((_, axis) => axis).filter((axis) => axis !== this.slicing.rows && axis !== this.slicing.columns);
    const pickers = shape.length > 1 ? [this.picker("rows", axes, shape), this.picker("columns", axes, shape)] : [];
    this.element.replaceChildren(...pickers, ...fixed.map((axis) => this.stepper(axis, axes[axis], shape[axis])));
  }

  picker(which, axes, shape) {
    const option = (name, axis) => make("option", { value: axis }, `${name} (${shape[axis]})`);
    const select = make("select", { "aria-label": `axis shown as ${which}`, onchange: () => this.setAxis(which, Number(select.value)) }, ...axes.map(option));
    select.value = String(this.slicing[which] ?? axes.findIndex((_, axis) => axis !== this.slicing.columns));
    return make("label", { class: "field" }, make("span", { class: "name" }, which), select);
  }

  /** Swaps the two drawn axes if the chosen one was already drawn as the other. */
  setAxis(which, axis) {
    const other = which === "rows" ? "columns" : "rows";
    const swapped = this.slicing[other] === axis ? this.slicing[which] : this.slicing[other];
    this.choose({ ...this.slicing, [which]: axis, [other]: swapped });
  }

  stepper(axis, name, size) {
    const set = (index) => this.choose({ ...this.slicing, fixed: this.slicing.fixed.with(axis, Math.min(size - 1, Math.max(0, Math.round(index) || 0))) });
    const input = make("input", { type: "number", min: 0, max: size - 1, step: 1, "data-axis": axis, "aria-label": `index on the axis ${name}`,
      onchange: () => set(Number(input.value)) });
    const step = (by, label, sign) => button(sign, () => set(this.slicing.fixed[axis] + by), { "aria-label": `${label} index on the axis ${name}` });
    return make("div", { class: "field" }, make("span", { class: "name" }, name), step(-1, "previous", "‹"), input, step(1, "next", "›"),
      make("span", { class: "quiet" }, `of ${size}`));
  }
}
