// printing.js: what is left out in print, where nothing can be scrolled.

/**
 * Which part of the lists is printed, as a sentence; empty on a screen, or where all lists are printed whole.
 * @param {Element} element
 * @param {...{name: string, first?: number, from: number, to: number, count: number, of: string}} lists
 *   first: the number of a list's first item, by default 1; from and to: how many items come before each edge, with fractions of clipped ones
 */
export function printedRange(element, ...lists) {
  const clipped = element.closest("[data-printing]") ? lists.filter(({ from, to, count }) => to - from < count) : [];
  if (!clipped.length) return "";
  const parts = clipped.map(({ name, first = 1, from, to, of }) => `${name} ${Math.floor(from) + first} to ${Math.ceil(to) - 1 + first} of ${of}`);
  const edge = clipped.some(({ from, to }) => from % 1 || to % 1) ? "; what crosses its edge is cut off" : "";
  return `This sheet shows ${parts.join(" and ")}${edge}.`;
}

/**
 * How many boxes come before an edge, with the fraction of one that is clipped.
 * @param {number} edge
 * @param {number[]} starts
 * @param {(index: number) => number} size
 */
export function boxesBefore(edge, starts, size) {
  return starts.reduce((sum, start, index) => sum + Math.min(1, Math.max(0, (edge - start) / size(index))), 0);
}
