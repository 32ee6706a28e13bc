// table.js: the picture as an HTML table of numbers that can be read aloud and copied. Each view defines its own table;
// here is the one of attention: a whole head of a short text, and of a long one the row of the selected token.
import { make } from "./dom.js";
import { Problem } from "./data.js";
import { copyButton, csv } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { exact, numberedName, tokenLabel, tokenNodes, tokenText } from "./tokens.js";

/** Up to this many tokens the table holds a whole head, above it a single row. */
const WHOLE_HEAD = 32;

/** The most rows of a table. */
const MAX_ROWS = 512;

/**
 * @typedef {object} Table
 * @property {string} title
 * @property {(Node|string)[]} caption what rows and columns are, and what is left out
 * @property {(Node|string)[]} columns
 * @property {{name: Node|string, cells: string[]}[]} rows
 * @property {string} [corner] the heading of the rows' names
 */

/**
 * Opens the table of the chosen view.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 */
export async function openTable(root, page) {
  try {
    const table = page.view().table?.() ?? (await attentionTable(page));
    openDialog(root, "table", make("h2", {}, table.title), toElement(table),
      make("p", { class: "copies" }, copyButton("copy as CSV", () => toCsv(table), { class: "plain framed" })));
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    openDialog(root, "table", make("p", { class: "problem" }, problem.message));
  }
}

/** @param {Table} table */
function toElement({ caption, columns, rows, corner = "" }) {
  const head = (name) => make("th", { scope: "col" }, name);
  const line = ({ name, cells }) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => make("td", {}, text)));
  return make("table", {}, make("caption", {}, ...caption),
    make("thead", {}, make("tr", {}, corner ? head(corner) : make("td", {}), ...columns.map(head))), make("tbody", {}, ...rows.map(line)));
}

/** @param {Table} table */
function toCsv({ columns, rows, corner = "" }) {
  const words = (name) => (typeof name === "string" ? name : name.textContent);
  return csv([[corner, ...columns.map(words)], ...rows.map(({ name, cells }) => [words(name), ...cells])]);
}

/** @returns {Promise<Table>} */
async function attentionTable(page) {
  if (!page.ready()) await page.source.load(page.blocks());
  const { head, query } = page.state();
  const shown = page.shown();
  const whole = shown.query.length <= WHOLE_HEAD && shown.key.length <= WHOLE_HEAD;
  const title = `Layer ${page.entry().layer} · head ${head}`;
  return { title, ...(whole ? headTable(page, shown, head) : rowTable(page, shown, head, query ?? shown.query[0])) };
}

function headTable(page, shown, head) {
  const tokens = page.tokens();
  const name = (side) => (index) => numberedName(tokenLabel(tokens[side][index]), index);
  return {
    caption: ["Rows are queries, columns are keys."], columns: shown.key.map(name("key")),
    rows: shown.query.map((query) => ({ name: name("query")(query), cells: shown.key.map((key) => exact(page.attention().row(head, query)[key])) })),
  };
}

/** Strongest first. */
function rowTable(page, shown, head, query) {
  const row = page.attention().row(head, query);
  const keys = [...shown.key].sort((a, b) => row[b] - row[a]).slice(0, MAX_ROWS);
  const left = shown.key.length - keys.length;
  return {
    caption: ["From ", ...tokenNodes(page.tokens().query, query), `, largest weight first${left ? `; ${left} smaller ones are left out` : ""}.`
      + " Other tokens have their own tables."],
    corner: "key", columns: ["weight"], rows: keys.map((key) => ({ name: make("bdi", {}, tokenText(page.tokens().key, key)), cells: [exact(row[key])] })),
  };
}
