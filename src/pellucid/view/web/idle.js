// idle.js: computes ahead while the page is idle, so that pointing at a key of a long text never waits.

/** The length of a slice of work, and of the pause before it, in milliseconds. */
const [WORK, REST] = [6, 12];

/** The most numbers that are computed ahead; more are computed on demand. */
export const MOST_AHEAD = 3e7;

/**
 * Returns a function that computes all rows of some heads; a new call cancels the last one.
 * @returns {(attention: import("./attention.js").Attention, heads: number[]) => void}
 */
export function makeWarmer() {
  let wanted = "";
  return (attention, heads) => {
    const name = `${attention.entry.name} ${heads}`;
    if (name === wanted || heads.length * attention.queries * attention.keys > MOST_AHEAD) return;
    wanted = name;
    const still = () => name === wanted;
    setTimeout(() => ofEachRow(attention, heads, (head, query) => attention.row(head, query), still), 20 * REST);
  };
}

/**
 * Calls `act` for every query of some heads, in small slices, so that the page stays responsive.
 * @param {import("./attention.js").Attention} attention
 * @param {Iterable<number>} heads
 * @param {(head: number, query: number) => void} act
 * @param {() => boolean} [still] false cancels the rest
 */
export async function ofEachRow({ queries }, heads, act, still = () => true) {
  let until = 0;
  for (const head of heads) {
    for (let query = 0; query < queries; query++) {
      if (performance.now() >= until) {
        await new Promise((go) => setTimeout(go, REST));
        until = performance.now() + WORK;
      }
      if (!still()) return;
      act(head, query);
    }
  }
}
