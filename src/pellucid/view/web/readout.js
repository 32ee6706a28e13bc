// readout.js: two texts that are always true. The readout says in words which number is under the pointer and what it is;
// the legend says what the picture shows, how exact it is and what it leaves out.
import { make, mark } from "./dom.js";
import { strongest } from "./attention.js";
import { exact, inNodes, chosenTokens } from "./tokens.js";

/** The readout line. */
export class Readout {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.words = make("span", { class: "readout-words" });
    this.value = make("span", { class: "readout-value" });
    this.note = make("span", { class: "readout-note" });
    this.element = make("p", { class: "readout", role: "status" }, this.words, this.value, this.note);
  }

  draw() {
    const { page } = this;
    const state = page.state();
    const cell = this.cell(state);
    this.value.textContent = cell ? exact(page.attention().row(state.head, cell.query)[cell.key]) : "";
    mark(this.value, "data-layer", cell && page.layerName());
    mark(this.value, "data-head", cell && state.head);
    mark(this.value, "data-query", cell && cell.query);
    mark(this.value, "data-key", cell && cell.key);
    this.note.textContent = cell ? [cell.note, state.pinned && "pinned"].filter(Boolean).join(" · ") : "";
    this.words.replaceChildren(...(cell
      ? [`layer ${page.layerName()} · head ${state.head} · `, ...inNodes(page.tokens, cell.query), " → ", ...inNodes(page.tokens, cell.key)]
      : [`layer ${page.layerName()} · head ${state.head} · point at a ${state.view === "matrix" ? "cell" : "token"} to read its weight`]));
  }

  /** The pair that is read; with one token in hand, its strongest partner. */
  cell({ head, query, key, pair }) {
    if (query === null && key === null) return null;
    const attention = this.page.attention();
    const shown = chosenTokens(this.page.tokens, pair);
    const masked = (cell) => (attention.sees(cell.query, cell.key) ? cell : { ...cell, note: "masked: it does not look ahead" });
    if (query !== null && key !== null) return masked({ query, key, note: "" });
    if (key === null) return { query, key: strongest((index) => attention.row(head, query)[index], shown.key), note: "its largest" };
    return { query: strongest((index) => attention.row(head, index)[key], shown.query), key, note: "the largest that it gets" };
  }
}

/** The legend below the picture. */
export class Legend {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.element = make("div", { class: "legend" });
  }

  /** @param {string[]} sentences what the view says about itself */
  draw(sentences) {
    const { entry, dtype } = this.page.attention();
    const error = entry.max_error;
    const measured = error == null
      ? "They were not compared with the model’s own weights."
      : `Largest difference from the model’s own weights in this layer: ${Number(error.toPrecision(2))}.`;
    const truth = `Weights after softmax, recomputed here from query and key stored as ${dtype}. ${measured}`;
    const lines = [sentences.join(" "), truth];
    if (this.text === lines.join()) return;
    this.text = lines.join();
    this.element.replaceChildren(...lines.map((line) => make("p", {}, line)));
  }
}
