// paper.js: what a sheet of paper leaves out, since nothing on it can be scrolled.

/**
 * What stands on the sheet of lists that are cut, as a sentence; nothing on a screen, or where they stand there whole.
 * @param {Element} element
 * @param {...{name: string, first?: number, from: number, to: number, count: number, of: string}} lists
 *   first: how the first of a list is numbered, by default 1; from and to: how many come before each edge, the share of one that is cut too
 */
export function onSheet(element, ...lists) {
  const cut = element.closest("[data-printing]") ? lists.filter(({ from, to, count }) => to - from < count) : [];
  if (!cut.length) return "";
  const parts = cut.map(({ name, first = 1, from, to, of }) => `${name} ${Math.floor(from) + first} to ${Math.ceil(to) - 1 + first} of ${of}`);
  const edge = cut.some(({ from, to }) => from % 1 || to % 1) ? "; what stands at its edge is cut" : "";
  return `On this sheet are ${parts.join(" and ")}${edge}.`;
}

/**
 * How many boxes come before an edge, the share of one that is cut too.
 * @param {number} edge
 * @param {number[]} starts
 * @param {(place: number) => number} size
 */
export function before(edge, starts, size) {
  return starts.reduce((sum, start, place) => sum + Math.min(1, Math.max(0, (edge - start) / size(place))), 0);
}
