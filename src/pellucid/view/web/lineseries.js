// lineseries.js: the series of lines that the heads view draws, one for each colour.
import { headColour, headDash, meanColour } from "./colour.js";

/** More heads than this are drawn as their mean, with only the selected head in colour. */
const MAX_COLOURED = 4;

/** The distance between the lines of two heads at a token, in pixels. */
const SPACING = 4;

/** Whether the picture shows a mean over heads. */
export function isMean(state) {
  return state.heads.length > MAX_COLOURED;
}

/**
 * Up to four heads, each in its colour; of more, the mean in grey and the selected head in colour.
 * @param {import("./state.js").State} state
 * @param {import("./attention.js").Attention} attention
 * @param {import("./colour.js").Theme} theme
 * @returns {import("./lines.js").LineSeries[]}
 */
export function lineSeries(state, attention, theme) {
  const ofHead = (head) => {
    return { colour: headColour(head, theme), dash: headDash(head, state.heads),
      row: (query) => attention.row(head, query), column: (key) => attention.column(head, key) };
  };
  const mean = { colour: meanColour(theme), dash: [],
    row: (query) => attention.meanRow(state.heads, query), column: (key) => attention.meanColumn(state.heads, key) };
  const series = !isMean(state) ? state.heads.map(ofHead) : state.heads.includes(state.head) ? [mean, ofHead(state.head)] : [mean];
  return series.map((one, index) => ({ ...one, shift: (index - (series.length - 1) / 2) * SPACING }));
}
