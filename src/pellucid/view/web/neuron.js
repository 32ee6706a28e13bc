// neuron.js: the neuron view. One query and its keys in detail: which numbers of the two vectors make up a score, and how the
// score becomes a weight.
import { make, scrollPageTo, scrollToBox } from "./dom.js";
import { argmax, hasNumbers, omittedMessage } from "./attention.js";
import { Chain } from "./chain.js";
import { headColour } from "./colour.js";
import { TokenColumn } from "./tokencolumn.js";
import { dropDown, SCALES, scaleSwitch } from "./controls.js";
import { Problem } from "./data.js";
import { clampedStep } from "./selection.js";
import { rampEnds, rotationSteps, sharedKeyHead } from "./neurondetails.js";
import { KeyList } from "./keylist.js";
import { printedRange } from "./printing.js";
import { headLabel } from "./readout.js";
import { exact, searchKey, tokenNodes, visible } from "./tokens.js";
import { Vectors } from "./vectors.js";

/** The message where only weights are stored. */
const NO_VECTORS = "This page holds the weights of this layer, but not its queries and keys: only weights were given, the page is a compact one,"
  + " or the weights do not follow from queries and keys (an edited pass, or one that began from a cache). So this view cannot show"
  + " how a weight was computed; Heads and Matrix show the weights.";

/** The order in which the keys of a query are listed. */
const ORDERS = { text: "in text order", weight: "largest weight first" };

/** @type {import("./app.js").ViewModule} */
export const neuronView = { name: "neuron", label: "Neuron", key: "n", create: (page) => new Neuron(page) };

class Neuron {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.problem = make("p", { class: "problem" }, NO_VECTORS);
    this.queries = make("div", { class: "scroller neuron-queries", onscroll: () => this.drawQueries() });
    this.title = make("h2", { class: "neuron-title" });
    this.shared = make("p", { class: "neuron-shared" });
    this.vectors = new Vectors((dimension) => this.point(this.pair.key, dimension));
    this.dimensionBox = make("div", { class: "neuron-dimension", "aria-live": "polite" });
    this.chain = new Chain();
    this.list = new KeyList({ press: (key) => this.press("key", key), point: (key, dimension) => this.point(key ?? this.pair.key, dimension),
      ready: () => page.ready() });
    const name = make("div", { class: "neuron-name", "aria-hidden": "true" }, make("b", {}, "query"));
    this.body = make("div", { class: "neuron-body" }, make("div", {}, name, this.queries), make("div", { class: "neuron-pair" },
      this.title, this.shared, this.vectors.element, this.dimensionBox, this.chain.element, this.list.element));
    this.element = make("div", { class: "neuron" }, this.problem, this.body);
    this.filter = make("input", { type: "search", placeholder: "find a key", "aria-label": "list only keys that contain this text", oninput: () => this.page.set({}) });
    const order = dropDown("Keys", "order of the keys", ORDERS, (chosen) => this.page.set({ order: chosen }), (state) => state.order);
    this.controls = [scaleSwitch(page), order, { element: this.filter }];
    this.cache = {};
  }

  draw() {
    const attention = this.page.attention();
    this.hasVectors = !attention.stored;
    [this.problem.hidden, this.body.hidden] = [this.hasVectors, !this.hasVectors];
    const state = this.page.state();
    if (!this.hasVectors) return;
    this.tokens = this.page.tokens();
    this.shown = this.cached("shown", `${this.page.entry().name} ${state.pair}`, () => this.page.shown());
    this.pair = this.pairOf(state, attention);
    this.element.style.setProperty("--hue", headColour(state.head, this.page.theme()));
    this.drawQueries();
    this.drawPair(state, attention);
    this.drawList(state, attention);
    this.scrollToPair();
  }

  /** Scrolls a token that was chosen elsewhere into view. */
  scrollToPair() {
    const { query, key } = this.pair;
    const target = `${this.cache.shown.name} ${query} ${key}`;
    if (this.scrolledTo !== target) this.reveal("query", query, false), this.reveal("key", key, false);
    if (!this.scrolledTo && this.page.state().pinned) this.scrollPageToQuery(query); // it comes from the address
    this.scrolledTo = target;
  }

  /** Caches a value until its name changes. */
  cached(slot, name, compute) {
    if (this.cache[slot]?.name !== name) this.cache[slot] = { name, value: compute() };
    return this.cache[slot].value;
  }

  /** The selected pair; a missing side is the one with the largest weight. */
  pairOf({ head, query, key }, attention) {
    const { query: queries, key: keys } = this.shown;
    const first = () => (key !== null ? argmax(attention.column(head, key), queries) : this.defaultQuery());
    const from = query !== null && queries.includes(query) ? query : first();
    const to = key !== null && keys.includes(key) ? key : argmax(attention.row(head, from), keys);
    return { query: from, key: to };
  }

  /** The default query: the last one under a causal mask, else the first token that is not special. */
  defaultQuery() {
    const { query: queries } = this.shown;
    if (this.page.attention().recipe.mask !== "full") return queries.at(-1);
    return queries.find((index) => this.tokens.query[index].kind !== "special") ?? queries[0];
  }

  drawQueries() {
    const column = this.cached("column", this.cache.shown.name, () => {
      const created = new TokenColumn("query", this.tokens.query, this.shown.query, { enter: () => {}, press: (_side, index) => this.press("query", index) });
      this.queries.replaceChildren(created.element);
      return created;
    });
    const { scrollTop: top, clientHeight: height } = this.queries;
    column.draw(top, top + height, { selected: this.pair.query, other: null, pinned: this.page.state().pinned, weight: null });
  }

  /** The two vectors of the pair, and the chain from their products to the weight. */
  drawPair(state, attention) {
    const { query, key } = this.pair;
    const steps = this.steps(key);
    const words = [...tokenNodes(this.tokens.query, query), " → ", ...tokenNodes(this.tokens.key, key)];
    const title = words.map((word) => word.textContent ?? word).join("");
    if (this.title.textContent !== title) this.title.replaceChildren(...words);
    this.shared.textContent = sharedKeyHead(attention, state.head);
    this.shared.hidden = !this.shared.textContent;
    this.ends = this.cached("ends", this.numbersKey(state), () => rampEnds(attention, state.head, query));
    const before = (part, name) => (steps[`${part}Before`] ? [{ part: `${part}Before`, name, numbers: steps[`${part}Before`], end: this.ends[part] }] : []);
    const rotated = steps.queryBefore ? ", rotated" : "";
    this.vectors.draw([...before("query", "query"), { part: "query", name: `query${rotated}`, numbers: steps.query, end: this.ends.query },
      ...before("key", "key"), { part: "key", name: `key${rotated}`, numbers: steps.key, end: this.ends.key },
      { part: "product", name: "products", numbers: steps.products, end: this.ends.product }], this.appearance());
    this.cached("pair", `${this.numbersKey(state)} ${key}`, () => (this.reading = { key, dimension: this.vectors.dimension }));
    this.showDimension(this.reading.key, this.reading.dimension);
    this.chain.draw(steps, { head: state.head, distance: key - query, biased: Boolean(attention.bias) });
  }

  /** Identifies the query that the numbers belong to. */
  numbersKey({ layer, head }) {
    return `${layer} ${head} ${this.pair.query}`;
  }

  appearance() {
    return { theme: this.page.theme(), scale: this.page.state().scale };
  }

  steps(key) {
    const { layer, head } = this.page.state();
    const { query } = this.pair;
    const computed = this.cached("steps", this.numbersKey({ layer, head }), () => new Map());
    if (!computed.has(key)) computed.set(key, this.page.attention().steps(head, query, key));
    return computed.get(key);
  }

  drawList(state, attention) {
    const { query, key } = this.pair;
    const row = attention.row(state.head, query);
    const wanted = searchKey(this.filter.value.trim());
    const name = [this.numbersKey(state), state.pair, state.order, wanted].join();
    const keys = this.cached("keys", name, () => {
      const found = this.shown.key.filter((index) => searchKey(visible(this.tokens.key[index].text)).includes(wanted));
      return state.order === "weight" ? found.sort((a, b) => row[b] - row[a]) : found;
    });
    const picture = [this.numbersKey(state), ...Object.values(this.appearance()), this.element.clientWidth, window.devicePixelRatio].join();
    const largest = this.cached("largest", name, () => keys.reduce((most, index) => Math.max(most, row[index]), 0));
    this.list.draw({ name: picture, tokens: this.tokens.key, keys, selected: key, largest, ends: this.ends, appearance: this.appearance(), steps: (index) => this.steps(index) });
  }

  /** Called when the pointer or the keyboard reaches a number of the vectors. */
  point(key, dimension) {
    if (!this.page.ready()) return;
    this.vectors.dimension = key === this.pair.key ? dimension : null; // the strips show the pair
    this.reading = { key, dimension };
    this.vectors.drawDimension();
    this.showDimension(key, dimension);
  }

  /** One dimension in numbers: the product, and with rotation the origin of its two factors. */
  showDimension(key, dimension) {
    const name = [this.numbersKey(this.page.state()), key, dimension].join();
    if (this.dimensionKey === name) return;
    this.dimensionKey = name;
    const steps = this.steps(key);
    if (dimension === null) {
      this.dimensionBox.replaceChildren(make("p", { class: "quiet" }, "Point at a number to read it; each column is one dimension of both vectors."));
      return;
    }
    const { query, key: other, products } = steps;
    const whose = key === this.pair.key ? [] : [" with ", ...tokenNodes(this.tokens.key, key)];
    const product = make("p", { "data-dimension": dimension, "data-key": key }, `dimension ${dimension}`, ...whose, ": ",
      make("b", {}, exact(query[dimension])), " × ", make("b", {}, exact(other[dimension])), " = ", make("b", {}, exact(products[dimension])));
    this.dimensionBox.replaceChildren(product, ...rotationSteps(this.page, steps, { query: this.pair.query, key }, dimension));
  }

  press(side, index) {
    const { key } = this.page.state();
    this.page.set({ side: "query", ...this.pair, key, [side]: index, pinned: true });
  }

  /** Arrow keys: up and down along a column, left and right between them; on the vectors, left and right along these. */
  move(right, down) {
    if (!this.hasVectors) return;
    if (this.vectors.focused() && right) return this.vectors.move(right);
    const side = right > 0 ? "key" : right < 0 ? "query" : this.queries.contains(document.activeElement) ? "query" : this.side ?? "key";
    const list = side === "query" ? this.shown.query : this.cache.keys.value;
    if (!list.length) return;
    const index = list.indexOf(this.pair[side]);
    this.side = side;
    this.press(side, list[clampedStep(index < 0 ? null : index, down, list.length)]);
    this.page.settle();
    this.reveal(side, this.pair[side], !this.vectors.focused());
  }

  /** Scrolls a token into view and focuses it. */
  reveal(side, index, focus = true) {
    if (!this.hasVectors) return;
    if (side === "key") return this.list.reveal(index, focus);
    const column = this.cache.column.value;
    const top = column.layout.tops[column.indices.indexOf(index)];
    scrollToBox(this.queries, { top, bottom: top + 60 });
    if (!focus) return;
    this.scrollPageToQuery(index);
    requestAnimationFrame(() => column.focus(index));
  }

  scrollPageToQuery(query) {
    const { indices, layout } = this.cache.column.value;
    const top = layout.tops[indices.indexOf(query)];
    scrollPageTo(this.queries, top, top + layout.rowHeight);
  }

  /** The text of the readout without a selected token; with one, it is the pair, as in every view. */
  readout() {
    const { query, key, head } = this.page.state();
    if (query !== null || key !== null) return null;
    if (!this.hasVectors) return { words: [headLabel(this.page)] };
    const weight = this.page.attention().row(head, this.pair.query)[this.pair.key];
    return {
      words: [`${headLabel(this.page)} · `, ...tokenNodes(this.tokens.query, this.pair.query), " → ", ...tokenNodes(this.tokens.key, this.pair.key)],
      value: exact(weight), note: `${Number.isNaN(weight) ? "" : "largest of this query · "}choose a query on the left, a key below`,
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    if (!this.hasVectors) return [];
    const { key: keys } = this.shown;
    const listed = this.cache.keys.value.length;
    return [
      "Blue is negative, orange is positive, the background is zero; each strip has its own colour range, given beside it,"
        + ` on a ${SCALES[this.page.state().scale]} scale.`,
      listed < keys.length ? `${listed} of ${keys.length} keys are listed: those that contain “${this.filter.value.trim()}”.` : "",
      this.page.state().pair === "all" ? "" : "Weights span both texts; only some of the keys are listed.",
      printedRange(this.element, this.cache.column.value.visibleRange(this.queries, "queries"), this.list.visibleRange()),
      this.page.attention().rotation ? "Query and key are rotated by the position of their token before they are multiplied (rotary position embedding)." : "",
    ].filter(Boolean);
  }

  /** @returns {import("./table.js").Table} the selected pair, dimension by dimension */
  table() {
    const { head } = this.page.state();
    const title = `Layer ${this.page.entry().layer} · head ${head}`;
    const entry = this.page.entry();
    if (!hasNumbers(entry)) throw new Problem(omittedMessage(entry));
    if (!this.hasVectors) throw new Problem(NO_VECTORS);
    const steps = this.steps(this.pair.key);
    const columns = [["query before rotation", steps.queryBefore], ["query", steps.query], ["key before rotation", steps.keyBefore], ["key", steps.key], ["product", steps.products]].filter(([, numbers]) => numbers);
    const caption = ["From ", ...tokenNodes(this.tokens.query, this.pair.query), " to ", ...tokenNodes(this.tokens.key, this.pair.key),
      `, dimension by dimension. Sum of products ${exact(steps.sum)}, weight ${exact(steps.weight)}.`];
    const rows = Array.from(steps.products, (_, dimension) => ({ name: String(dimension), cells: columns.map(([, numbers]) => exact(numbers[dimension])) }));
    return { title, caption, corner: "dimension", columns: columns.map(([name]) => name), rows };
  }
}
