// neuron.js: the neuron view. One query and its keys in detail: which numbers of the two vectors make up a score, and how the
// score becomes a weight.
import { bring, lift, make } from "./dom.js";
import { hasNumbers, leftOut, strongest } from "./attention.js";
import { Chain } from "./chain.js";
import { headColour } from "./colour.js";
import { Column } from "./column.js";
import { picker, SCALES, scaleSwitch } from "./controls.js";
import { Problem } from "./data.js";
import { stepped } from "./hand.js";
import { endsOf, sharing, turnsOf } from "./headfacts.js";
import { KeyList } from "./keylist.js";
import { onSheet } from "./paper.js";
import { placeOf } from "./readout.js";
import { exact, inNodes, searchKey, visible } from "./tokens.js";
import { Vectors } from "./vectors.js";

/** The message where only weights are stored. */
const WHY = "This page holds the weights of this layer, but not its queries and keys: only weights were given, the page is a compact one,"
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
    this.why = make("p", { class: "problem" }, WHY);
    this.queries = make("div", { class: "scroller neuron-queries", onscroll: () => this.drawQueries() });
    this.title = make("h2", { class: "neuron-title" });
    this.shared = make("p", { class: "neuron-shared" });
    this.vectors = new Vectors((place) => this.point(this.pair.key, place));
    this.dimension = make("div", { class: "neuron-dimension", "aria-live": "polite" });
    this.chain = new Chain();
    this.list = new KeyList({ press: (key) => this.press("key", key), point: (key, place) => this.point(key ?? this.pair.key, place),
      ready: () => page.ready() });
    const name = make("div", { class: "neuron-name", "aria-hidden": "true" }, make("b", {}, "query"));
    this.body = make("div", { class: "neuron-body" }, make("div", {}, name, this.queries), make("div", { class: "neuron-pair" },
      this.title, this.shared, this.vectors.element, this.dimension, this.chain.element, this.list.element));
    this.element = make("div", { class: "neuron" }, this.why, this.body);
    this.find = make("input", { type: "search", placeholder: "find a key", "aria-label": "list only keys that contain this text", oninput: () => this.page.set({}) });
    const order = picker("Keys", "order of the keys", ORDERS, (chosen) => this.page.set({ order: chosen }), (state) => state.order);
    this.controls = [scaleSwitch(page), order, { element: this.find }];
    this.kept = {};
  }

  draw() {
    const attention = this.page.attention();
    this.whole = Boolean(attention.query && attention.key);
    [this.why.hidden, this.body.hidden] = [this.whole, !this.whole];
    const state = this.page.state();
    if (!this.whole) return;
    this.tokens = this.page.tokens();
    this.shown = this.keep("shown", `${this.page.entry().name} ${state.pair}`, () => this.page.shown());
    this.pair = this.pairOf(state, attention);
    this.element.style.setProperty("--hue", headColour(state.head, this.page.theme()));
    this.drawQueries();
    this.drawPair(state, attention);
    this.drawList(state, attention);
    this.follow();
  }

  /** Scrolls a token that was chosen elsewhere into view. */
  follow() {
    const { query, key } = this.pair;
    const name = `${this.kept.shown.name} ${query} ${key}`;
    if (this.followed !== name) this.reveal("query", query, false), this.reveal("key", key, false);
    if (!this.followed && this.page.state().pinned) this.lift(query); // it comes from the address
    this.followed = name;
  }

  /** Caches a value until its name changes. */
  keep(what, name, compute) {
    if (this.kept[what]?.name !== name) this.kept[what] = { name, value: compute() };
    return this.kept[what].value;
  }

  /** The active pair; a missing side is the one with the largest weight. */
  pairOf({ head, query, key }, attention) {
    const { query: queries, key: keys } = this.shown;
    const first = () => (key !== null ? strongest(attention.column(head, key), queries) : this.telling());
    const from = query !== null && queries.includes(query) ? query : first();
    const to = key !== null && keys.includes(key) ? key : strongest(attention.row(head, from), keys);
    return { query: from, key: to };
  }

  /** The default query: the last one under a causal mask, else the first token that is not special. */
  telling() {
    const { query: queries } = this.shown;
    if (this.page.attention().recipe.mask !== "full") return queries.at(-1);
    return queries.find((index) => this.tokens.query[index].kind !== "special") ?? queries[0];
  }

  drawQueries() {
    const column = this.keep("column", this.kept.shown.name, () => {
      const made = new Column("query", this.tokens.query, this.shown.query, { enter: () => {}, press: (_side, index) => this.press("query", index) });
      this.queries.replaceChildren(made.element);
      return made;
    });
    const { scrollTop: top, clientHeight: height } = this.queries;
    column.draw(top, top + height, { active: this.pair.query, other: null, pinned: this.page.state().pinned, weight: null });
  }

  /** The two vectors of the pair, and the chain from their products to the weight. */
  drawPair(state, attention) {
    const { query, key } = this.pair;
    const steps = this.steps(key);
    const words = [...inNodes(this.tokens.query, query), " → ", ...inNodes(this.tokens.key, key)];
    const title = words.map((word) => word.textContent ?? word).join("");
    if (this.title.textContent !== title) this.title.replaceChildren(...words);
    this.shared.textContent = sharing(attention, state.head);
    this.shared.hidden = !this.shared.textContent;
    this.ends = this.keep("ends", this.nameOf(state), () => endsOf(attention, state.head, query));
    const before = (part, name) => (steps[`${part}Before`] ? [{ part: `${part}Before`, name, numbers: steps[`${part}Before`], end: this.ends[part] }] : []);
    const turned = steps.queryBefore ? ", rotated" : "";
    this.vectors.draw([...before("query", "query"), { part: "query", name: `query${turned}`, numbers: steps.query, end: this.ends.query },
      ...before("key", "key"), { part: "key", name: `key${turned}`, numbers: steps.key, end: this.ends.key },
      { part: "product", name: "products", numbers: steps.products, end: this.ends.product }], this.look());
    this.keep("pair", `${this.nameOf(state)} ${key}`, () => (this.reading = { key, place: this.vectors.place }));
    this.showDimension(this.reading.key, this.reading.place);
    this.chain.draw(steps, { head: state.head, distance: key - query, biased: Boolean(attention.bias), stored: attention.stored });
  }

  /** Identifies the query that the numbers belong to. */
  nameOf({ layer, head }) {
    return `${layer} ${head} ${this.pair.query}`;
  }

  look() {
    return { theme: this.page.theme(), scale: this.page.state().scale };
  }

  steps(key) {
    const { layer, head } = this.page.state();
    const { query } = this.pair;
    const kept = this.keep("steps", this.nameOf({ layer, head }), () => new Map());
    if (!kept.has(key)) kept.set(key, this.page.attention().steps(head, query, key));
    return kept.get(key);
  }

  drawList(state, attention) {
    const { query, key } = this.pair;
    const row = attention.row(state.head, query);
    const wanted = searchKey(this.find.value.trim());
    const name = [this.nameOf(state), state.pair, state.order, wanted].join();
    const keys = this.keep("keys", name, () => {
      const found = this.shown.key.filter((index) => searchKey(visible(this.tokens.key[index].text)).includes(wanted));
      return state.order === "weight" ? found.sort((a, b) => row[b] - row[a]) : found;
    });
    const picture = [this.nameOf(state), ...Object.values(this.look()), this.element.clientWidth, window.devicePixelRatio].join();
    const largest = this.keep("largest", name, () => keys.reduce((most, index) => Math.max(most, row[index]), 0));
    this.list.draw({ name: picture, tokens: this.tokens.key, keys, active: key, largest, ends: this.ends, look: this.look(), steps: (index) => this.steps(index) });
  }

  /** Called when the pointer or the keyboard reaches a number of the vectors. */
  point(key, place) {
    if (!this.page.ready()) return;
    this.vectors.place = key === this.pair.key ? place : null; // the strips show the pair
    this.reading = { key, place };
    this.vectors.drawPlace();
    this.showDimension(key, place);
  }

  /** One dimension in numbers: the product, and with rotation the origin of its two factors. */
  showDimension(key, place) {
    const name = [this.nameOf(this.page.state()), key, place].join();
    if (this.dimensionName === name) return;
    this.dimensionName = name;
    const steps = this.steps(key);
    if (place === null) {
      this.dimension.replaceChildren(make("p", { class: "quiet" }, "Point at a number to read it; each column is one dimension of both vectors."));
      return;
    }
    const { query, key: other, products } = steps;
    const whose = key === this.pair.key ? [] : [" with ", ...inNodes(this.tokens.key, key)];
    const product = make("p", { "data-dimension": place, "data-key": key }, `dimension ${place}`, ...whose, ": ",
      make("b", {}, exact(query[place])), " × ", make("b", {}, exact(other[place])), " = ", make("b", {}, exact(products[place])));
    this.dimension.replaceChildren(product, ...turnsOf(this.page, steps, { query: this.pair.query, key }, place));
  }

  press(side, index) {
    const { key } = this.page.state();
    this.page.set({ side: "query", ...this.pair, key, [side]: index, pinned: true });
  }

  /** Arrow keys: up and down along a column, left and right between them; on the vectors, left and right along these. */
  move(right, down) {
    if (!this.whole) return;
    if (this.vectors.focused() && right) return this.vectors.move(right);
    const side = right > 0 ? "key" : right < 0 ? "query" : this.queries.contains(document.activeElement) ? "query" : this.side ?? "key";
    const list = side === "query" ? this.shown.query : this.kept.keys.value;
    if (!list.length) return;
    const place = list.indexOf(this.pair[side]);
    this.side = side;
    this.press(side, list[stepped(place < 0 ? null : place, down, list.length)]);
    this.page.settle();
    this.reveal(side, this.pair[side], !this.vectors.focused());
  }

  /** Scrolls a token into view and focuses it. */
  reveal(side, index, focus = true) {
    if (!this.whole) return;
    if (side === "key") return this.list.reveal(index, focus);
    const column = this.kept.column.value;
    const top = column.layout.tops[column.indices.indexOf(index)];
    bring(this.queries, { top, bottom: top + 60 });
    if (!focus) return;
    this.lift(index);
    requestAnimationFrame(() => column.focus(index));
  }

  lift(query) {
    const { indices, layout } = this.kept.column.value;
    const place = layout.tops[indices.indexOf(query)];
    lift(this.queries, place, place + layout.row);
  }

  /** The text of the readout without an active token; with one, it is the pair, as in every view. */
  readout() {
    const { query, key, head } = this.page.state();
    if (query !== null || key !== null) return null;
    if (!this.whole) return { words: [placeOf(this.page)] };
    const weight = this.page.attention().row(head, this.pair.query)[this.pair.key];
    return {
      words: [`${placeOf(this.page)} · `, ...inNodes(this.tokens.query, this.pair.query), " → ", ...inNodes(this.tokens.key, this.pair.key)],
      value: exact(weight), note: `${Number.isNaN(weight) ? "" : "largest of this query · "}choose a query on the left, a key below`,
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    if (!this.whole) return [];
    const { key: keys } = this.shown;
    const listed = this.kept.keys.value.length;
    return [
      "Blue is negative, orange is positive, the background is zero; each strip has its own colour range, given beside it,"
        + ` on a ${SCALES[this.page.state().scale]} scale.`,
      listed < keys.length ? `${listed} of ${keys.length} keys are listed: those that contain “${this.find.value.trim()}”.` : "",
      this.page.state().pair === "all" ? "" : "Weights span both texts; only some of the keys are listed.",
      onSheet(this.element, this.kept.column.value.inSight(this.queries, "queries"), this.list.inSight()),
      this.page.attention().rotation ? "Query and key are rotated by the position of their token before they are multiplied (rotary position embedding)." : "",
    ].filter(Boolean);
  }

  /** @returns {import("./table.js").Table} the active pair, dimension by dimension */
  table() {
    const { head } = this.page.state();
    const title = `Layer ${this.page.layerName()} · head ${head}`;
    const entry = this.page.entry();
    if (!hasNumbers(entry)) throw new Problem(leftOut(entry));
    if (!this.whole) throw new Problem(WHY);
    const steps = this.steps(this.pair.key);
    const columns = [["query before rotation", steps.queryBefore], ["query", steps.query], ["key before rotation", steps.keyBefore], ["key", steps.key], ["product", steps.products]].filter(([, numbers]) => numbers);
    const caption = ["From ", ...inNodes(this.tokens.query, this.pair.query), " to ", ...inNodes(this.tokens.key, this.pair.key),
      `, dimension by dimension. Sum of products ${exact(steps.sum)}, weight ${exact(steps.weight)}.`];
    const rows = Array.from(steps.products, (_, place) => ({ name: String(place), cells: columns.map(([, numbers]) => exact(numbers[place])) }));
    return { title, caption, corner: "dimension", columns: columns.map(([name]) => name), rows };
  }
}
