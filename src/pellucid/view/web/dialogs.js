// dialogs.js: what opens over the page: the numbers as a real table, and the help.
import { button, make } from "./dom.js";
import { chosenTokens, exact, inNodes, inWords, tokenLabel } from "./tokens.js";

/** Up to this many tokens the table holds a whole head, beyond it one row of it. */
const WHOLE_HEAD = 32;

/** Most rows of a table. */
const MOST_ROWS = 512;

/** What the keys do, in the order of the help. */
const KEYS = [
  ["↑ ↓ ← →", "move the token (heads) or the cell (matrix)"], ["Space", "pin it, so that you can look at its partners"],
  ["[ ]", "layer back, layer on"], [", .", "head back, head on"], ["s", "show this head alone"],
  ["h m", "heads view, matrix view"], ["t", "the numbers as a table"], ["?", "this help"], ["Esc", "close, or let go of the token"],
];

/**
 * Opens a dialog; it removes itself when closed.
 * @param {Element} root
 * @param {string} name
 * @param {...Node} content
 */
function open(root, name, ...content) {
  const dialog = make("dialog", { class: `sheet-${name}`, tabindex: -1, "aria-label": name, onclose: () => dialog.remove(),
    onclick: (event) => event.target === dialog && dialog.close() },
    button("✕", () => dialog.close(), { class: "plain close", "aria-label": "close" }), ...content);
  root.append(dialog);
  dialog.showModal();
  dialog.focus();
}

/** @param {Element} root */
export function openHelp(root) {
  const rows = KEYS.flatMap(([keys, meaning]) => [make("dt", {}, ...keys.split(" ").map((key) => make("kbd", {}, key))), make("dd", {}, meaning)]);
  open(root, "help", make("h2", {}, "How to read this page"),
    make("p", {}, "In every layer each head lets each token look at the others. It shares out a weight of 1: what it looks at"
      + " most gets the most. A line, or a cell of the matrix, is such a weight."),
    make("p", {}, "Point at a token to see only its lines. Click to pin it, then point at a token on the other side to read that"
      + " one number. Click a head to switch it on or off; double click shows it alone."),
    make("dl", {}, ...rows),
    make("p", { class: "quiet" }, "A weight says where a head looked, not why the model answered as it did."));
}

/**
 * The head in hand as a table; of a long text, the row of the token in hand.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 */
export function openTable(root, page) {
  const { head, pair, query } = page.state();
  const shown = chosenTokens(page.tokens, pair);
  const whole = shown.query.length <= WHOLE_HEAD && shown.key.length <= WHOLE_HEAD;
  const title = `Layer ${page.layerName()} · head ${head}`;
  open(root, "table", make("h2", {}, title), whole ? headTable(page, shown, head) : rowTable(page, shown, head, query ?? shown.query[0]));
}

function headTable(page, shown, head) {
  const name = (scope) => (index) => make("th", { scope }, tokenLabel(page.tokens[index]), make("small", {}, String(index)));
  const body = shown.query.map((query) => make("tr", {}, name("row")(query),
    ...shown.key.map((key) => make("td", {}, exact(page.attention().row(head, query)[key])))));
  return make("table", {}, make("caption", {}, "A row is a query, a column is a key."),
    make("thead", {}, make("tr", {}, make("td", {}), ...shown.key.map(name("col")))), make("tbody", {}, ...body));
}

/** Strongest first. */
function rowTable(page, shown, head, query) {
  const row = page.attention().row(head, query);
  const keys = [...shown.key].sort((a, b) => row[b] - row[a]).slice(0, MOST_ROWS);
  const body = keys.map((key) => make("tr", {}, make("th", { scope: "row" }, inWords(page.tokens, key)), make("td", {}, exact(row[key]))));
  const left = shown.key.length - keys.length;
  return make("table", {}, make("caption", {}, "From ", ...inNodes(page.tokens, query), `, strongest first${left ? `; ${left} smaller ones are left out` : ""}.`),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "looks at"), make("th", { scope: "col" }, "weight"))), make("tbody", {}, ...body));
}
