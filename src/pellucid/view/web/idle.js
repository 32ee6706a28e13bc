// idle.js: precomputes rows while the page is idle, so that pointing at a key of a long text never waits.

/** The length of a slice of work, and of the pause before it, in milliseconds. */
const [SLICE, PAUSE] = [6, 12];

/** The most numbers that are precomputed; more are computed on demand. */
export const MAX_PRECOMPUTED = 3e7;

/**
 * Returns a function that computes all rows of some heads; a new call cancels the last one.
 * @returns {(attention: import("./attention.js").Attention, heads: number[]) => void}
 */
export function makePrecomputer() {
  let latest = "";
  return (attention, heads) => {
    const name = `${attention.entry.name} ${heads}`;
    if (name === latest || heads.length * attention.queries * attention.keys > MAX_PRECOMPUTED) return;
    latest = name;
    const isCurrent = () => name === latest;
    setTimeout(() => forEachRow(attention, heads, (head, query) => attention.row(head, query), isCurrent), 20 * PAUSE);
  };
}

/**
 * Calls `visit` for every query of some heads, in small slices, so that the page stays responsive.
 * @param {import("./attention.js").Attention} attention
 * @param {Iterable<number>} heads
 * @param {(head: number, query: number) => void} visit
 * @param {() => boolean} [isCurrent] false cancels the rest
 */
export async function forEachRow({ queries }, heads, visit, isCurrent = () => true) {
  let deadline = 0;
  for (const head of heads) {
    for (let query = 0; query < queries; query++) {
      if (performance.now() >= deadline) {
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
        deadline = performance.now() + SLICE;
      }
      if (!isCurrent()) return;
      visit(head, query);
    }
  }
}
