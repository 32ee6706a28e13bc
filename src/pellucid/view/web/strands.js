// strands.js: which lines the heads view draws, and in which colours.
import { headColour, headDash, meanColour } from "./colour.js";

/** More heads than this are drawn as their mean, with only the active head in colour. */
const MOST_COLOURS = 4;

/** The distance between the lines of two heads at a token, in pixels. */
const APART = 4;

/** Whether the picture shows a mean over heads. */
export function isMean(state) {
  return state.heads.length > MOST_COLOURS;
}

/**
 * Up to four heads, each in its colour; of more, the mean in grey and the active head in colour.
 * @param {import("./state.js").State} state
 * @param {import("./attention.js").Attention} attention
 * @param {import("./colour.js").Theme} theme
 * @returns {import("./lines.js").Strand[]}
 */
export function strandsOf(state, attention, theme) {
  const own = (head) => {
    return { colour: headColour(head, theme), dash: headDash(head, state.heads),
      row: (query) => attention.row(head, query), column: (key) => attention.column(head, key) };
  };
  const mean = { colour: meanColour(theme), dash: [],
    row: (query) => attention.meanRow(state.heads, query), column: (key) => attention.meanColumn(state.heads, key) };
  const strands = !isMean(state) ? state.heads.map(own) : state.heads.includes(state.head) ? [mean, own(state.head)] : [mean];
  return strands.map((strand, place) => ({ ...strand, shift: (place - (strands.length - 1) / 2) * APART }));
}
