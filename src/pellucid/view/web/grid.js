// grid.js: the model grid. Every head of every layer as a thumbnail of its matrix, for an overview of the whole model.
// It needs only the stored thumbnails, no arithmetic; only the layers on screen exist as elements.
import { make, scrollPageTo, scrollToBox, setAttribute, syncChildren } from "./dom.js";
import { ramp } from "./colour.js";
import { hasNumbers } from "./attention.js";
import { dropDown, SCALES, scaleSwitch } from "./controls.js";
import { isDialogOpen } from "./dialogs.js";
import { clampedStep } from "./selection.js";
import { boxesBefore, printedRange } from "./printing.js";
import { onPointer } from "./pointer.js";
import { chooseHead, groupIndices, groupOf } from "./state.js";
import { largestOf, paintThumbs, thumbsOf } from "./thumbs.js";

/** Pixels: least and most width of a thumbnail, the gap to the next, room for the layers' labels, the heads' labels and a title. */
const SIZE = { minWidth: 22, maxWidth: 120, gap: 6, side: 42, head: 24, title: 38 };

/** The names of the groups, in display order. */
const TITLES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention: the decoder attends to the encoder" };

/** The weight at the end of a thumbnail's ramp. */
const ENDS = { own: "each head’s largest", one: "1 for all heads" };

/** @type {import("./app.js").ViewModule} */
export const gridView = {
  name: "grid", label: "Model", key: "g",
  available: (manifest) => manifest.attentions.some((entry) => entry.thumb),
  create: (page) => new Grid(page),
};

class Grid {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.entries = page.manifest.attentions;
    this.columns = Math.max(...this.entries.map((entry) => entry.heads));
    this.groups = [...new Set(this.entries.map(groupOf))].map((group) => ({ group, members: groupIndices(page.manifest, group) }));
    this.order = this.groups.flatMap(({ members }) => members);
    /** @type {Map<number, HTMLElement>} the rows on screen, by their index in manifest.attentions */
    this.rows = new Map();
    this.heads = make("div", { class: "grid-heads", "aria-hidden": "true" });
    this.current = make("div", { class: "grid-mark grid-current" });
    this.pointed = make("div", { class: "grid-mark grid-pointed" });
    this.body = make("div", { class: "grid-body", onclick: (event) => this.open(this.cellAt(event)),
      ...onPointer({ move: (event) => this.setHovered(this.cellAt(event)), leave: () => this.setHovered(null) }) }, this.heads, this.current, this.pointed);
    this.element = make("div", { class: "grid scroller", tabindex: 0, role: "group",
      "aria-label": "all heads of all layers; arrow keys move between heads, Enter opens one",
      onscroll: () => this.draw() }, this.body);
    document.addEventListener("keydown", (event) => this.press(event));
    const ends = dropDown("up to", "end of the colour range", ENDS, (end) => this.page.set({ ends: end }), (state) => state.ends);
    this.controls = [scaleSwitch(page), ends];
    this.sharedControls = ["side", "layer", "heads"];
    this.tokenless = true;
    /** @type {{index: number, head: number}|null} the cell under the pointer */
    this.hovered = null;
  }

  requiredBlocks() {
    return this.entries.map((entry) => entry.thumb).filter(Boolean);
  }

  draw() {
    const state = this.page.state();
    const layoutKey = [this.element.clientWidth, this.page.theme(), state.scale, state.ends, window.devicePixelRatio].join();
    if (layoutKey !== this.layoutKey) this.layout(state);
    this.layoutKey = layoutKey;
    if (this.layer !== state.layer) this.scrollToHead(state.layer, state.head);
    this.layer = state.layer;
    const { scrollTop: top, clientHeight: height } = this.element;
    const near = (box) => box.top + box.height > top - height / 2 && box.top < top + 1.5 * height;
    const shown = this.order.filter((index) => near(this.boxes.get(index)));
    syncChildren(this.body, this.rows, shown, (index) => this.makeRow(index), this.pointed);
    this.drawMarks(state);
  }

  /** For a new width, theme or scale: recomputes all positions and repaints all thumbnails. */
  layout({ scale, ends }) {
    const room = this.element.clientWidth - SIZE.side - 8;
    this.width = Math.max(SIZE.minWidth, Math.min(SIZE.maxWidth, Math.floor(room / this.columns) - SIZE.gap));
    this.step = this.width + SIZE.gap;
    this.paint = { width: this.width, step: this.step, scale, end: ends === "one" ? 1 : null, colours: ramp(this.page.theme()) };
    /** @type {Map<number, {top: number, height: number}>} */
    this.boxes = new Map();
    const titles = [];
    let top = SIZE.head;
    for (const { group, members } of this.groups) {
      if (this.groups.length > 1) titles.push(this.makeTitle(TITLES[group] ?? "Self-attention", top)), (top += SIZE.title);
      for (const index of members) {
        this.boxes.set(index, { top, height: this.heightOf(this.entries[index]) });
        top += this.boxes.get(index).height + SIZE.gap;
      }
    }
    Object.assign(this.body.style, { width: `${SIZE.side + this.columns * this.step}px`, height: `${top + 4}px` });
    this.rows.clear();
    this.heads.replaceChildren(...this.headNumbers());
    this.body.replaceChildren(this.heads, ...titles, this.current, this.pointed);
  }

  /** A thumbnail keeps the aspect ratio of its matrix, within limits. */
  heightOf(entry) {
    const [queries, keys] = [entry.queries, entry.keys].map((side) => this.page.manifest.sequences[side].tokens.length);
    return Math.round(this.width * Math.min(1.6, Math.max(0.4, queries / keys)));
  }

  makeTitle(text, top) {
    const element = make("h2", { class: "grid-title" }, text);
    element.style.top = `${top}px`;
    return element;
  }

  headNumbers() {
    const every = Math.ceil(20 / this.step);
    return Array.from({ length: Math.ceil(this.columns / every) }, (_, index) => {
      const element = make("span", { "data-head": index * every }, String(index * every));
      Object.assign(element.style, { left: `${SIZE.side + index * every * this.step}px`, width: `${this.width}px` });
      return element;
    });
  }

  makeRow(index) {
    const [entry, { top, height }] = [this.entries[index], this.boxes.get(index)];
    const element = make("div", { class: "grid-row", "data-place": index }, make("span", { class: "grid-layer" }, String(entry.layer)));
    Object.assign(element.style, { top: `${top}px`, height: `${height}px` });
    if (entry.thumb) {
      const canvas = make("canvas", { role: "img", "aria-label": `${this.nameOf(index)}, ${entry.heads} heads` });
      paintThumbs(canvas, thumbsOf(this.page.source, entry), { ...this.paint, height });
      element.append(canvas);
    } else element.append(make("span", { class: "quiet" }, "no picture of this layer was stored"));
    return element;
  }

  drawMarks({ layer, head }) {
    this.drawMark(this.current, { index: layer, head });
    this.drawMark(this.pointed, this.hovered);
    const shown = this.hovered ?? { index: layer, head };
    for (const number of this.heads.children) setAttribute(number, "data-current", Number(number.dataset.head) === shown.head);
    for (const [index, row] of this.rows) setAttribute(row, "data-current", index === shown.index);
  }

  drawMark(element, cell) {
    element.hidden = !cell;
    if (!cell) return;
    const { top, height } = this.boxes.get(cell.index);
    Object.assign(element.style, { top: `${top}px`, left: `${SIZE.side + cell.head * this.step}px`, width: `${this.width}px`, height: `${height}px` });
  }

  /** For example "layer 3", or with several kinds of attention "encoder layer 3". */
  nameOf(index) {
    const group = groupOf(this.entries[index]);
    return `${group === "cross" ? "cross-attention, " : group ? `${group} ` : ""}layer ${this.entries[index].layer}`;
  }

  /** The text of the readout: the cell under the pointer, or else the one reached by keyboard. */
  readout() {
    const { layer, head } = this.page.state();
    const cell = this.hovered ?? { index: layer, head };
    const entry = this.entries[cell.index];
    const most = entry.thumb && largestOf(entry, thumbsOf(this.page.source, entry), cell.head);
    const largest = Number.isNaN(most) ? "some weights are NaN" : `largest weight about ${most?.toPrecision(2)}`;
    const opens = this.page.views.find((view) => view.name === this.targetView())?.label;
    return { words: [`${this.nameOf(cell.index)} · head ${cell.head}`], value: "",
      note: [entry.thumb && largest, `${this.hovered ? "click" : "press Enter"} to open the head in ${opens}`].filter(Boolean).join(" · ") };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const patches = this.entries.find((entry) => entry.thumb && this.page.manifest.sequences[entry.keys].tokens.length > this.page.manifest.blocks[entry.thumb].shape[2]);
    const masked = this.entries.some(({ recipe }) => recipe.mask !== "full");
    return [
      "Each row is a layer and each picture a head; in a picture, rows are queries and columns are keys.",
      `Colours run from 0 to ${this.page.state().ends === "one" ? "1" : "the largest weight of each head"} on a ${SCALES[this.page.state().scale]} scale.`,
      this.entries.some(({ beyond }) => beyond) ? "Weights that are NaN or above 1 are drawn as 1, those below 0 as 0." : "",
      patches ? "Each dot is the largest weight in a patch of tokens." : "", masked ? "Empty parts are masked." : "",
      printedRange(this.element, ...this.visibleRange()),
    ].filter(Boolean);
  }

  /** The visible rows and columns, below and beside their labels. */
  visibleRange() {
    const { scrollTop: top, scrollLeft: left, clientHeight, clientWidth } = this.element;
    const boxes = this.order.map((index) => this.boxes.get(index));
    const [rows, columns] = [boxes.map((box) => box.top), Array.from({ length: this.columns }, (_, head) => SIZE.side + head * this.step)];
    const down = (edge) => boxesBefore(edge, rows, (index) => boxes[index].height);
    const across = (edge) => boxesBefore(edge, columns, () => this.width);
    return [
      { name: "rows", from: down(top + this.heads.offsetHeight), to: down(top + clientHeight), count: rows.length, of: `the ${rows.length} layers` },
      { name: "heads", first: 0, from: across(left + SIZE.side), to: across(left + clientWidth), count: this.columns, of: String(this.columns) },
    ];
  }

  /** The sentence below the legend. */
  provenance() {
    const pictures = "The pictures hold one byte per weight (its square root in 255 steps); the exact numbers are in the view that a picture opens";
    const without = this.order.filter((index) => !hasNumbers(this.entries[index])).map((index) => this.nameOf(index));
    return without.length ? `${pictures}, except those of ${without.join(", ")}, which were left out to keep this page small.` : `${pictures}.`;
  }

  /** @returns {import("./table.js").Table} the largest weight of every head */
  table() {
    const rows = this.order.filter((index) => this.entries[index].thumb).map((index) => {
      const thumbs = thumbsOf(this.page.source, this.entries[index]);
      return { name: this.nameOf(index), cells: Array.from({ length: thumbs.heads }, (_, head) => largestOf(this.entries[index], thumbs, head).toPrecision(3)) };
    });
    const caption = ["The largest weight of each head, from pictures with one byte per weight. Rows are layers, columns are heads."];
    return { title: "All heads", caption, columns: Array.from({ length: this.columns }, (_, head) => String(head)), rows };
  }

  /** The cell under the pointer. @returns {{index: number, head: number}|null} */
  cellAt(event) {
    if (event.target.closest(".grid-layer")) return null; // it covers pictures scrolled out of view
    const box = this.body.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - SIZE.side, event.clientY - box.top];
    const head = Math.floor(x / this.step);
    const index = this.order.find((each) => y >= this.boxes.get(each).top && y < this.boxes.get(each).top + this.boxes.get(each).height);
    return index === undefined || head < 0 || head >= this.entries[index].heads ? null : { index, head };
  }

  setHovered(cell) {
    if (cell?.index === this.hovered?.index && cell?.head === this.hovered?.head) return;
    this.hovered = cell;
    this.page.set({}); // redraws the readout
  }

  clearHover() {
    this.setHovered(null);
  }

  /** The view in which a thumbnail opens: the one of these two that was used last. */
  targetView() {
    return this.page.state().last ?? "matrix";
  }

  open(cell) {
    if (!cell) return;
    this.hovered = null;
    this.page.set({ view: this.targetView(), layer: cell.index, head: cell.head, heads: [cell.head] });
  }

  /** Enter, pressed here, or anywhere if this is the only view on its page and nothing else is focused. */
  press(event) {
    const here = event.target === this.element || (event.target === document.body && document.querySelectorAll(".pellucid").length === 1);
    if (event.key !== "Enter" || !here || !this.element.isConnected || isDialogOpen(document)) return;
    const { layer, head } = this.page.state();
    this.open({ index: layer, head });
    event.preventDefault();
  }

  /** Arrow keys move between heads and layers. */
  move(right, down) {
    const { layer, head } = this.page.state();
    const index = this.order[clampedStep(this.order.indexOf(layer), down, this.order.length)];
    const next = clampedStep(head, right, this.entries[index].heads);
    this.page.set({ layer: index, ...chooseHead(this.page.state(), next) });
    this.hovered = null;
    this.scrollToHead(index, next);
    this.element.focus({ preventScroll: true });
    const { top, height } = this.boxes.get(index);
    scrollPageTo(this.element, top, top + height);
  }

  /** Scrolls a cell into view. */
  scrollToHead(index, head) {
    const { top, height } = this.boxes.get(index);
    const left = SIZE.side + head * this.step;
    scrollToBox(this.element, { top: top - SIZE.head - SIZE.title, bottom: top + height + SIZE.gap, left: left - SIZE.side, right: left + this.step });
  }
}
