// readout.js: two texts that always match the picture. The readout names the number under the pointer and its value;
// the legend describes what the picture shows, its error and what it leaves out.
import { make, setAttribute } from "./dom.js";
import { argmax } from "./attention.js";
import { groupOf, hasGivenWeights } from "./state.js";
import { exact, tokenNodes } from "./tokens.js";

/** The readout line. */
export class Readout {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.words = make("span", { class: "readout-words" });
    this.value = make("span", { class: "readout-value" });
    this.note = make("span", { class: "readout-note" });
    this.lastNote = undefined;
    this.element = make("p", { class: "readout", role: "status" }, this.words, this.value, this.note);
  }

  draw() {
    const { page } = this;
    const fromView = page.view().readout?.();
    const cell = fromView || !page.ready() ? null : this.cell(page.state());
    const reading = fromView ?? (cell ? this.about(cell) : { words: [`${headLabel(page)} · point at a ${page.state().view === "matrix" ? "cell" : "token"} to read its weight`] });
    const previous = `${this.words.textContent} ${this.value.textContent}`;
    this.words.replaceChildren(...reading.words);
    this.value.textContent = reading.value ?? "";
    const same = previous === `${this.words.textContent} ${this.value.textContent}` && this.lastNote === reading.note;
    if (!same) this.note.textContent = reading.note ?? ""; // else it may report that this number was copied
    this.lastNote = reading.note;
    this.keepHeight();
    setAttribute(this.value, "data-layer", cell && page.entry().layer);
    setAttribute(this.value, "data-head", cell && page.state().head);
    setAttribute(this.value, "data-query", cell && cell.query);
    setAttribute(this.value, "data-key", cell && cell.key);
  }

  /** Clears it where nothing is drawn. */
  clear() {
    this.words.replaceChildren();
    this.value.textContent = this.note.textContent = "";
    for (const name of Object.keys(this.value.dataset)) delete this.value.dataset[name];
  }

  /** Keeps the largest height so far, so that nothing below moves away from the pointer. */
  keepHeight() {
    const key = `${this.page.state().view} ${window.innerWidth}`;
    if (key !== this.heightKey) this.element.style.minHeight = "";
    this.heightKey = key;
    const height = `${this.element.offsetHeight}px`;
    if (this.element.style.minHeight === height) return;
    this.element.style.minHeight = height;
    document.documentElement.style.scrollPaddingTop = height; // focused elements scroll to below it
  }

  about(cell) {
    const { page } = this;
    const [state, tokens] = [page.state(), page.tokens()];
    return {
      words: [`${headLabel(page)} · `, ...tokenNodes(tokens.query, cell.query), " → ", ...tokenNodes(tokens.key, cell.key)],
      value: exact(page.attention().row(state.head, cell.query)[cell.key]),
      note: [cell.note, state.pinned && "pinned"].filter(Boolean).join(" · "),
    };
  }

  /** The pair that is read; with one selected token, its strongest partner. */
  cell({ head, query, key }) {
    if (query === null && key === null) return null;
    const attention = this.page.attention();
    const shown = this.page.shown();
    if (query !== null && key !== null) return { query, key, note: attention.mayAttend(query, key) ? "" : `masked: ${whyNot(attention, query, key)}` };
    if (key === null) {
      const keys = shown.key.filter((one) => attention.mayAttend(query, one));
      const row = attention.row(head, query);
      const to = argmax(row, keys.length ? keys : shown.key);
      return { query, key: to, note: Number.isNaN(row[to]) ? "" : "largest of this query" };
    }
    const queries = shown.query.filter((one) => attention.mayAttend(one, key));
    const column = attention.column(head, key);
    const from = argmax(column, queries.length ? queries : shown.query);
    return { query: from, key, note: Number.isNaN(column[from]) ? "" : "largest of this key" };
  }
}

/** Why a query may not attend to a key. */
function whyNot({ recipe }, query, key) {
  return key > query ? "the key is after the query" : `the key is outside the window of ${recipe.window} tokens`;
}

/** The legend below the picture. */
export class Legend {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.element = make("div", { class: "legend" });
  }

  clear() {
    this.text = "";
    this.element.replaceChildren();
  }

  /** @param {string[]} sentences those of the view */
  draw(sentences) {
    const { page } = this;
    const provenance = page.view().provenance?.() ?? (page.ready() ? provenanceOf(page.attention(), hasGivenWeights(page.manifest), page.manifest.edits) : "");
    const lines = [[sentences.join(" ")], [provenance].flat()].map((words) => make("p", {}, ...words)).filter((line) => line.textContent);
    const text = lines.map((line) => line.textContent).join();
    if (this.text === text) return;
    this.text = text;
    this.element.replaceChildren(...lines);
  }
}

/** For example "layer 3 · head 5", in an encoder-decoder after the kind of attention. */
export function headLabel(page) {
  const group = groupOf(page.entry());
  return `${group ? `${group} · ` : ""}layer ${page.entry().layer} · head ${page.state().head}`;
}

/**
 * What the weights of an attention are, and their error.
 * @param {import("./attention.js").Attention} attention
 * @param {boolean} given whether the user gave them, instead of a model
 * @param {string[]} [edits] the edits of their run
 */
function provenanceOf({ entry, dtype, stored, coding }, given, edits) {
  const error = entry.max_error;
  const whose = given ? "the given weights" : edits ? "the weights of the edited run" : "the model’s own weights";
  const measured = given && error === 0 ? "" : error == null
    ? `They were not compared with ${whose}.`
    : `Largest difference from ${whose} in this layer${entry.measured_rows ? `, measured in ${entry.measured_rows} rows of each head` : ""}: ${Number(error.toPrecision(2))}.`;
  const plain = dtype === "int16" ? "in 16 bits each" : `as ${dtype}`;
  if (!stored) return `Weights after softmax, recomputed here from queries and keys stored ${plain}. ${measured}`;
  const how = coding ? "in one byte each (in steps of their square root)" : plain;
  return `${given ? "Weights as given" : "Weights after softmax"}, stored ${how}, not recomputed. ${measured}`.trim();
}
