// wordgrid.js: a grid of words for the lens. Rows and columns have names, a cell is a word on a shade.
// Only the columns on screen exist as elements, so 2,000 tokens cost no more than 15.
import { make, scrollPageTo, scrollToBox, setAttribute, syncChildren } from "./dom.js";
import { ramp, rampStep } from "./colour.js";
import { printedRange } from "./printing.js";
import { onPointer } from "./pointer.js";

/** Pixels: a cell, the names on the left, and a row. */
const [WIDTH, NAMES, HEIGHT] = [104, 132, 28];

/**
 * @typedef {{text: Node|string, share: number, mark: string|null, title: string}} Word
 *   share: 0 to 1, the position of the shade on the ramp; mark: a sign in the corner
 *
 * @typedef {object} Grid the contents of a grid
 * @property {string} label its accessible name
 * @property {{name: string, title: string}[]} rows
 * @property {number} columns
 * @property {(column: number) => Node} heading
 * @property {(row: number, column: number) => Word} word
 * @property {(row: number, column: number) => void} enter called when the pointer or the keyboard reaches a cell
 * @property {(row: number, column: number) => void} press
 * @property {() => void} leave
 */

export class WordGrid {
  /** @param {Grid} grid */
  constructor(grid) {
    this.grid = grid;
    this.top = this.makeRow("", 0);
    this.rows = grid.rows.map(({ name, title }, row) => this.makeRow(name, row + 1, title));
    /** @type {Map<number, HTMLElement>[]} the cells on screen by column, of the headings and of each row */
    this.cells = [this.top, ...this.rows].map(() => new Map());
    const forward = (action) => (event) => {
      const cell = event.target.closest("[data-row]");
      if (cell) action(Number(cell.dataset.row), Number(cell.dataset.column));
    };
    this.body = make("div", { class: "words-body" }, this.top, ...this.rows);
    this.body.style.width = `${NAMES + grid.columns * WIDTH}px`;
    this.body.style.setProperty("--names", `${NAMES}px`);
    this.element = make("div", {
      class: "words", role: "grid", "aria-label": grid.label, "aria-rowcount": grid.rows.length + 1, "aria-colcount": grid.columns + 1,
      onscroll: () => this.draw(), onclick: forward(grid.press), ...onPointer({ over: forward(grid.enter), leave: grid.leave }),
      onfocusin: (event) => event.target.matches(":focus-visible") && forward(grid.enter)(event),
    }, this.body);
  }

  makeRow(name, index, title = "") {
    const element = make("div", { class: "words-row", role: "row", "aria-rowindex": index + 1 },
      make("div", { class: "words-name", role: index ? "rowheader" : "columnheader", "aria-colindex": 1, title }, make("span", {}, name || "layer ↓ token →")));
    element.style.height = `${HEIGHT}px`;
    return element;
  }

  /** @param {{row: number|null, column: number|null, pinned: boolean, theme: import("./colour.js").Theme, scale: "sqrt"|"linear"}} [state] */
  draw(state = this.state) {
    if (!state) return;
    const repaint = state.theme !== this.state?.theme || state.scale !== this.state.scale;
    if (repaint) this.colours = ramp(state.theme);
    this.state = state;
    const tabStop = { row: state.row ?? 0, column: state.column ?? 0 };
    const [first, last] = this.window();
    const columns = [...Array(this.grid.columns).keys()].filter((column) => (column >= first && column < last) || column === tabStop.column);
    const [headings, ...cells] = this.cells;
    syncChildren(this.top, headings, columns, (column) => this.makeHeading(column), this.top.firstChild);
    this.rows.forEach((element, row) => {
      syncChildren(element, cells[row], columns, (column) => this.makeCell(row, column), element.firstChild);
      for (const [column, cell] of cells[row]) {
        if (repaint || !cell.hasChildNodes()) this.paint(cell, row, column);
        setAttribute(cell, "tabindex", row === tabStop.row && column === tabStop.column ? 0 : -1);
        setAttribute(cell, "aria-selected", row === state.row && column === state.column);
        setAttribute(cell, "data-pinned", state.pinned && row === state.row && column === state.column);
      }
    });
  }

  /** The columns on screen, from the first up to but not including the last. */
  window() {
    const { scrollLeft, clientWidth } = this.element;
    return [Math.max(0, Math.floor(scrollLeft / WIDTH) - 1), Math.min(this.grid.columns, Math.ceil((scrollLeft + clientWidth) / WIDTH) + 1)];
  }

  /** What is left out in print, as a sentence. */
  printedRange() {
    const { scrollLeft, clientWidth } = this.element;
    const { columns } = this.grid;
    const to = Math.min(columns, (scrollLeft + clientWidth - NAMES) / WIDTH);
    return printedRange(this.element, { name: "tokens", first: 0, from: scrollLeft / WIDTH, to, count: columns, of: String(columns) });
  }

  positionCell(cell, column) {
    cell.style.left = `${NAMES + column * WIDTH}px`;
    cell.style.width = `${WIDTH}px`;
    return cell;
  }

  makeHeading(column) {
    const attributes = { class: "words-heading", role: "columnheader", "aria-colindex": column + 2, "data-column": column };
    return this.positionCell(make("div", attributes, this.grid.heading(column)), column);
  }

  makeCell(row, column) {
    const attributes = { class: "word", role: "gridcell", "aria-colindex": column + 2, "data-row": row, "data-column": column };
    return this.positionCell(make("div", attributes), column);
  }

  /** Black or white text, whichever is more legible on the shade. */
  paint(cell, row, column) {
    const { text, share, mark, title } = this.grid.word(row, column);
    const isNaN = Number.isNaN(share); // from NaN in the model: the word is meaningless
    const at = 3 * rampStep(isNaN ? 0 : share, 1, this.state.scale);
    const [red, green, blue] = this.colours.slice(at, at + 3);
    cell.style.background = `rgb(${red} ${green} ${blue})`;
    cell.style.color = luminance(red, green, blue) > 0.179 ? "#000000" : "#ffffff";
    setAttribute(cell, "title", title);
    setAttribute(cell, "data-mark", isNaN ? null : mark);
    cell.replaceChildren(isNaN ? "NaN" : text);
  }

  /** Scrolls a cell into view and focuses it. */
  reveal(row, column, focus = true) {
    const [left, top] = [column * WIDTH, row * HEIGHT];
    scrollToBox(this.element, { top, bottom: top + 2 * HEIGHT, left, right: left + WIDTH + NAMES });
    scrollPageTo(this.element, top + HEIGHT, top + 2 * HEIGHT);
    if (focus) requestAnimationFrame(() => this.cells[row + 1].get(column)?.focus({ preventScroll: true }));
  }
}

/** The relative luminance of a colour, 0 to 1 (WCAG 2.2). */
function luminance(...parts) {
  const [red, green, blue] = parts.map((part) => (part <= 10 ? part / 3295 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
