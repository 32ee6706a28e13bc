// hand.js: the cell in hand: where an arrow key takes it, and what stands around it.

/**
 * The place one step on, inside a list.
 * @param {number|null} now null where no cell is in hand yet
 * @param {number} by
 * @param {number} count
 * @param {number} [first] where the first key lands
 */
export function stepped(now, by, count, first = 0) {
  return now === null ? first : Math.min(count - 1, Math.max(0, now + by));
}

/**
 * Listens in a list for Home and End, which go to its ends.
 * @param {(right: number, down: number) => void} move
 */
export function toEnds(move) {
  return (event) => {
    const down = { Home: -Infinity, End: Infinity }[event.key];
    if (down === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(0, down);
  };
}

/**
 * At most `most` places of a list, those around the one in hand.
 * @param {number|null} place
 * @param {number} most
 * @param {number} count
 * @returns {number[]}
 */
export function around(place, most, count) {
  const from = Math.max(0, Math.min(count - most, (place ?? 0) - Math.floor(most / 2)));
  return Array.from({ length: Math.min(most, count) }, (_, at) => from + at);
}
