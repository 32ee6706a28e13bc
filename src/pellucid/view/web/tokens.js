// tokens.js: how a token is displayed. Nothing in it stays invisible, and nothing can extend outside its box.
import { make } from "./dom.js";

/** The most characters of a token that are shown; the rest is in its tooltip. */
const MAX_CHARACTERS = 40;

const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u007f": "␡", "\u00a0": "⍽", "\u200b": "∅" };

/** A text with its direction marks replaced by visible signs: they would reorder the letters that the model read. */
export function withoutDirectionMarks(text) {
  return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** Shows spaces, line ends and control characters as signs; and joiners and other spaces where there is nothing else. */
export function visible(text) {
  const control = (c) => SIGNS[c] ?? (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\ufffd");
  const signs = text.replace(/[\p{Cc} \u00a0\u200b]/gu, control);
  return /[^\p{Z}\p{DI}]/u.test(signs) ? withoutDirectionMarks(signs) : signs.replace(/[^]/gu, (c) => (/\p{Z}/u.test(c) ? "⍽" : "∅")) || "∅";
}

/** The text as it is searched: without case, and with accents composed. */
export function searchKey(text) {
  return text.normalize("NFC").toLowerCase();
}

/** At most 40 characters, each with at most four accents; an emoji counts as one. */
export function shortened(text) {
  const start = text.slice(0, 8 * MAX_CHARACTERS);
  const shown = visible(start).replace(/(\p{M}{4})\p{M}+/gu, "$1");
  const letters = [...shown];
  return letters.length > MAX_CHARACTERS || start !== text ? letters.slice(0, MAX_CHARACTERS).join("") + "…" : shown;
}

/**
 * A token as an element; <bdi> keeps right-to-left text from reordering its neighbours.
 * @param {import("./data.js").Token} token
 */
export function tokenLabel(token) {
  const text = shortened(token.text);
  const continues = token.kind === "subword" && text.startsWith("##") && text.length > 2;
  const parts = continues ? [make("span", { class: "joint" }, "##"), text.slice(2)] : [text];
  return make("bdi", { class: "token", "data-kind": token.kind }, ...parts);
}

/** For example “flies” (2), as plain text. */
export function tokenText(tokens, index) {
  return `“${shortened(tokens[index].text)}” (${index})`;
}

/** For example “flies” (2), as nodes that isolate right-to-left text. */
export function tokenNodes(tokens, index) {
  return ["“", make("bdi", {}, shortened(tokens[index].text)), `” (${index})`];
}

/** The name of a row or a column of a table, and its index in small print. @param {Node|string} name */
export function numberedName(name, index) {
  return make("span", {}, name, make("small", {}, ` ${index}`));
}

/** The tooltip of a token. */
export function tokenTitle(tokens, index) {
  const { text, id, segment } = tokens[index];
  return `${visible(text)}\ntoken ${index}` + (id === null ? "" : ` · id ${id}`) + (hasPair(tokens) ? ` · text ${"AB"[segment]}` : "");
}

/** Whether the tokens are of two texts. */
export function hasPair(tokens) {
  return tokens.some((token) => token.segment !== tokens[0].segment);
}

/** The pair filter: the text of the queries, and that of the keys. */
export const PAIRS = { all: "all", AA: "A → A", AB: "A → B", BA: "B → A", BB: "B → B" };

/**
 * The tokens that pass a pair filter, in order.
 * @param {{query: import("./data.js").Token[], key: import("./data.js").Token[]}} tokens
 * @param {string} pair a key of PAIRS
 * @returns {{query: number[], key: number[]}}
 */
export function filterTokens(tokens, pair) {
  const of = (list, letter) => [...list.keys()].filter((index) => pair === "all" || list[index].segment === "AB".indexOf(letter));
  return { query: of(tokens.query, pair[0]), key: of(tokens.key, pair[1]) };
}

/** A number with nine digits: enough to distinguish any two float32 numbers. */
export function exact(weight) {
  return weight === 0 ? "0" : Number.isFinite(weight) ? weight.toPrecision(9) : String(weight);
}

/** A formatted number with a minus as wide as a digit. */
export function withMinusSign(text) {
  return text.replace(/^-/, "−");
}

/** Formats a fraction, as 23.4 %. */
export function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : 1)} %`;
}
