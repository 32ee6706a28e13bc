// diff.js: the diff view. Two runs of a model, this one minus the other: one head as a matrix, an overview of all heads, and the lens.
import { Problem } from "./data.js";
import { make } from "./dom.js";
import { SCALES, scaleSwitch, segments } from "./controls.js";
import { LensDiff } from "./difflens.js";
import { DifferenceList } from "./difflist.js";
import { around, Cell, stepped } from "./hand.js";
import { Ends, Heat } from "./heat.js";
import { layerWords, Overview } from "./overview.js";
import { exact, inNodes, inWords, tokenLabel } from "./tokens.js";
import { otherEntry, Twins, twinBlocks } from "./twins.js";
import { named, runs } from "./tworuns.js";

/** The largest height in pixels, and the most rows and columns of a table. */
const [TALL, WHOLE] = [560, 32];

/** @type {import("./app.js").ViewModule} */
export const diffView = {
  name: "diff", label: "Diff", key: "d",
  available: (manifest) => Boolean(manifest.other),
  create: (page) => new Diff(page),
};

class Diff {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    const { manifest } = page;
    this.overview = new Overview(page, { enter: (place, head) => this.look(place, head), press: (place, head) => this.choose(place, head),
      leave: () => this.look(null, null) });
    const { state } = page;
    this.cells = {
      weights: new Cell(() => ({ row: state().query, column: state().key, pinned: state().pinned }),
        ({ row, column, pinned }) => this.take({ side: "query", query: row, key: column, pinned })),
      lens: new Cell(() => this.hand(), (cell) => this.set(cell)),
    };
    this.heat = new Heat({ label: "differences in the weights of one head; arrow keys move the selected cell", ...this.cells.weights.pointer });
    this.list = new DifferenceList(this.cells.weights.pointer.press);
    this.fault = make("p", { class: "problem" });
    this.weights = make("div", { class: "diff-weights" },
      this.overview.element,
      make("section", { class: "diff-head", "aria-label": "the selected head" }, this.heading = make("h2", {}), this.fault,
        make("div", { class: "tensor-scroll" }, this.heat.element), make("h3", {}, "Largest differences"), this.list.element));
    this.words = make("div", {});
    this.element = make("div", { class: "diff" }, runs(manifest), this.weights, this.words);
    this.ends = new Ends();
    const which = segments("what to compare", { weights: "weights", lens: "lens" }, (of) => this.set({ of }), () => this.hand().of);
    which.element.hidden = !(manifest.lens && manifest.other.lens);
    this.controls = [which, scaleSwitch(page), { element: this.ends.element }];
  }

  /** The lens has no heads. */
  get common() {
    return this.hand().of === "lens" ? [] : ["side", "layer", "heads"];
  }

  /** The state of this view: weights or lens, the active cell of the lens, the head of the overview under the pointer. */
  hand() {
    return { of: "weights", row: null, column: null, pinned: false, lookAt: null, ...this.page.state().diff };
  }

  set(patch) {
    this.page.set({ diff: { ...this.hand(), ...patch } });
  }

  look(place, head) {
    this.set({ lookAt: place === null ? null : { place, head } });
  }

  /** Activates a cell or a head, instead of the head under the pointer. */
  take(patch) {
    this.page.set({ ...patch, diff: { ...this.hand(), lookAt: null } });
  }

  choose(layer, head) {
    if (head < this.page.manifest.attentions[layer].heads) this.take({ layer, head, heads: [head] });
  }

  needs() {
    const { manifest } = this.page;
    const lens = ({ ids, log_probabilities: logs }) => [ids, logs];
    const own = this.page.blocksOf(this.page.state().layer);
    return this.hand().of === "lens" ? [...own, ...lens(manifest.lens), ...lens(manifest.other.lens)] : [...own, ...twinBlocks(manifest, this.page.state().layer)];
  }

  draw() {
    const { of } = this.hand();
    this.weights.hidden = of === "lens";
    this.words.hidden = of !== "lens";
    this.ends.element.hidden = true;
    if (of === "lens") this.drawLens();
    else this.drawWeights();
  }

  drawLens() {
    if (!this.lens) {
      this.lens = new LensDiff(this.page, this.cells.lens);
      this.words.replaceChildren(this.lens.element);
      const { row, column, pinned } = this.hand();
      if (pinned) this.lens.grid?.reveal(row, column, false); // it comes from the address
    }
    this.lens.draw(this.hand());
    this.ends.element.hidden = !this.lens.grid;
    this.ends.draw(100, false, this.page.theme(), " %");
  }

  drawWeights() {
    const state = this.page.state();
    if (this.twins?.place !== state.layer) this.twins = new Twins(this.page.source, state.layer);
    const fault = this.twins.fault();
    this.heading.textContent = `${capital(layerWords(this.page.entry()))} · head ${state.head}`;
    this.fault.textContent = fault;
    for (const element of this.weights.querySelectorAll(".diff-head > :not(h2, .problem)")) element.hidden = Boolean(fault);
    this.fault.hidden = !fault;
    if (!fault) this.drawHead(state);
    const { lookAt } = this.hand();
    this.overview.draw(lookAt ?? { place: state.layer, head: state.head }, !lookAt);
    this.overview.start(state.layer);
  }

  drawHead(state) {
    const { one } = this.twins;
    const key = `${state.layer}/${state.head}`;
    if (key !== this.key) {
      this.key = key;
      this.rows = Array.from({ length: one.queries }, (_, query) => this.twins.row(state.head, query));
      const larger = (best, value) => (Number.isFinite(value) ? Math.max(best, Math.abs(value)) : best);
      this.largest = this.rows.reduce((most, row) => row.reduce(larger, most), 0);
      this.broken = this.rows.some((row) => !row.every(Number.isFinite));
      this.list.fill(this.twins, state.head, this.rows, this.page.tokens());
    }
    this.ends.element.hidden = !this.largest;
    this.ends.draw(this.largest, true, this.page.theme());
    const finite = (value) => (Number.isFinite(value) ? value : NaN);
    const value = (query, key) => (this.twins.sees(query, key) ? finite(this.rows[query][key]) : Infinity);
    const room = Math.max(160, this.heat.element.parentElement.clientWidth - 150);
    const names = { row: (query) => this.name("query", query), column: (key) => this.name("key", key) };
    this.heat.draw({ key, rows: one.queries, columns: one.keys, value, largest: this.largest, signed: true, scale: state.scale, names,
      axes: { row: "query", column: "key" }, room, height: TALL },
    { row: state.key === null ? null : state.query, column: state.key, pinned: state.pinned, theme: this.page.theme(), description: this.inWords(state) });
  }

  /** The token of this run, and that of the other run where it differs. */
  name(side, index) {
    const [own, theirs] = [this.page.tokens()[side][index], this.others(side)[index]];
    return own.text === theirs.text ? tokenLabel(own) : make("span", {}, tokenLabel(own), " | ", tokenLabel(theirs));
  }

  others(side) {
    const entry = otherEntry(this.page.manifest, this.page.state().layer);
    return this.page.manifest.other.sequences[side === "query" ? entry.queries : entry.keys].tokens;
  }

  inWords({ query, key, head }) {
    const pair = query === null || key === null ? null : [inWords(this.page.tokens().query, query), inWords(this.page.tokens().key, key)];
    const cell = pair ? `: ${pair.join(" to ")} ${this.rows[query][key].toPrecision(3)}` : "";
    return `differences in weights, ${layerWords(this.page.entry())}, head ${head}${cell}`;
  }

  /** The text of the readout. */
  readout() {
    const hand = this.hand();
    if (hand.of === "lens") return this.lens.readout(hand);
    const state = this.page.state();
    if (hand.lookAt) return this.overview.readout(hand.lookAt);
    const place = `${layerWords(this.page.entry())} · head ${state.head} · `;
    const seen = (query, key) => (this.twins.sees(query, key) ? "" : " · masked");
    if (this.twins.fault()) return { words: [place, "not comparable"] };
    if (state.query === null || state.key === null) return { words: [place, "point at a cell to read its difference"] };
    const [mine, theirs] = [this.twins.one, this.twins.other].map((each) => each.row(state.head, state.query)[state.key]);
    return {
      words: [place, ...inNodes(this.page.tokens().query, state.query), " → ", ...inNodes(this.page.tokens().key, state.key)],
      value: exact(mine - theirs), note: `this run ${exact(mine)}, other ${exact(theirs)}${seen(state.query, state.key)}${state.pinned ? " · pinned" : ""}`,
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    if (this.hand().of === "lens") return this.lens.legend();
    if (this.twins.fault()) return [this.overview.legend()];
    const end = exact(this.largest);
    const scale = `on a ${SCALES[this.page.state().scale]} scale.`;
    return [
      this.largest ? `This run minus the other: orange is larger in this run, blue in the other, from −${end} to ${end} ${scale}` : "",
      this.heat.pooling(),
      this.broken || this.overview.broken() ? "Cells where the weight of either run is NaN or infinite are black (white on a dark page)." : "",
      this.overview.legend(),
    ].filter(Boolean);
  }

  /** The sentence below the legend. */
  truth() {
    const compared = this.hand().of !== "lens" && this.twins?.fault() === "";
    return named(this.page.manifest, compared ? ` ${this.twins.truth()}` : "");
  }

  /** @returns {import("./table.js").Table} */
  table() {
    const hand = this.hand();
    if (hand.of === "lens" && this.lens) return this.lens.table(hand.column ?? this.lens.one.tokens.length - 1);
    const { layer, head, query, key } = this.page.state();
    if (this.twins?.place !== layer) return null; // unreadable: the table of attention gives the reason
    const title = `${capital(layerWords(this.page.entry()))} · head ${head} · this run minus the other`;
    if (this.twins.fault()) throw new Problem(this.twins.fault());
    const [queries, keys] = [around(query, WHOLE, this.twins.one.queries), around(key, WHOLE, this.twins.one.keys)];
    const left = this.twins.one.queries * this.twins.one.keys - queries.length * keys.length;
    const caption = `Rows are queries, columns are keys.${left ? ` ${left.toLocaleString("en")} more cells are left out: move the selected cell to see others.` : ""}`;
    const named = (side) => (index) => make("span", {}, this.name(side, index), make("small", {}, ` ${index}`));
    const rows = queries.map((at) => ({ name: named("query")(at), cells: keys.map((place) => exact(this.rows[at][place])) }));
    return { title, caption: [caption], columns: keys.map(named("key")), rows };
  }

  python() {
    const hand = this.hand();
    if (hand.of === "lens") return this.lens?.python(hand);
    if (hand.lookAt || this.twins?.fault() !== "") return "";
    const { layer, head, query, key } = this.page.state();
    const cell = `["${this.page.manifest.attentions[layer].name}.weights"][0, ${head}, ${query}, ${key}]`;
    return query === null || key === null ? "" : `trace${cell} - other${cell}`;
  }

  pin() {
    this.cells[this.hand().of].pin();
  }

  release() {
    this.set({ row: null, column: null, pinned: false, lookAt: null });
  }

  exit() {
    this.set({ lookAt: null, ...(this.hand().pinned ? {} : { row: null, column: null }) });
  }

  /** The tokens that can be searched; for weights, those of the page. */
  searchTokens() {
    return this.hand().of === "lens" ? this.lens?.one.tokens : null;
  }

  /** Goes to a token that was found; in the weights, to the largest difference of its row. */
  reveal(_side, token) {
    const hand = this.hand();
    if (hand.of === "lens") {
      if (!this.lens?.grid) return;
      const row = hand.row ?? this.lens.places.length - 1;
      this.set({ row, column: token, pinned: false });
      this.lens.grid.reveal(row, token);
    } else if (this.twins?.fault() === "") {
      const key = this.rows[token].reduce((best, value, at, row) => (Math.abs(value) > Math.abs(row[best]) ? at : best), 0);
      this.take({ key });
      this.heat.reveal(token, key);
    }
  }

  /** Arrow keys move the cell; in the overview they choose a head. */
  move(right, down) {
    const [hand, state, { attentions }] = [this.hand(), this.page.state(), this.page.manifest];
    if (hand.of === "lens") {
      if (!this.lens?.grid) return;
      this.cells.lens.move({ right, down, rows: this.lens.places.length, columns: this.lens.one.tokens.length }, this.lens.grid);
    } else if (this.overview.heat.plot.contains(document.activeElement)) {
      const layer = stepped(state.layer, down, attentions.length);
      const head = stepped(state.head, right, attentions[layer].heads);
      this.choose(layer, head);
      this.overview.heat.reveal(layer, head);
    } else if (this.twins?.fault() === "") {
      this.cells.weights.move({ right, down, rows: this.twins.one.queries, columns: this.twins.one.keys }, this.heat);
    }
  }
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
