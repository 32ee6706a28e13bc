// idle.js: works ahead while the page has nothing to do, so that pointing at a key of a long text never waits.

/** Milliseconds of work at a time, and of rest before it. */
const [WORK, REST] = [6, 12];

/** More numbers than this are left to be computed when they are looked at. */
export const MOST_AHEAD = 3e7;

/**
 * Makes a function that computes all rows of some heads; a new call makes it forget the last one.
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
 * Acts for every query of some heads, a little at a time, so that the page answers meanwhile.
 * @param {import("./attention.js").Attention} attention
 * @param {Iterable<number>} heads
 * @param {(head: number, query: number) => void} act
 * @param {() => boolean} [still] is it still wanted?
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
