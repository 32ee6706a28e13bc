// idle.js: works ahead while the page has nothing to do, so that pointing at a key of a long text never waits.

/** Milliseconds of work at a time, and of rest after it. */
const [WORK, REST] = [6, 12];

/** More numbers than this are left to be computed when they are looked at. */
const MOST = 3e7;

/**
 * Makes a function that computes all rows of some heads; a new call makes it forget the last one.
 * @returns {(attention: import("./attention.js").Attention, heads: number[]) => void}
 */
export function makeWarmer() {
  let wanted = "";
  return (attention, heads) => {
    const name = `${attention.entry.name} ${heads}`;
    if (name === wanted || heads.length * attention.queries * attention.keys > MOST) return;
    wanted = name;
    const rowsOf = (head) => Array.from({ length: attention.queries }, (_, query) => ({ head, query }));
    const left = heads.flatMap(rowsOf);
    const step = () => {
      if (name !== wanted) return;
      const end = performance.now() + WORK;
      while (left.length && performance.now() < end) {
        const { head, query } = left.pop();
        attention.row(head, query);
      }
      if (left.length) setTimeout(step, REST);
    };
    setTimeout(step, 20 * REST);
  };
}
