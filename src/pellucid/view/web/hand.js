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

/** @typedef {{row: number|null, column: number|null, pinned: boolean}} CellInHand */

/** The cell in hand of a picture: the pointer takes it, a press pins it or lets it go, arrow keys move it. */
export class Cell {
  /**
   * @param {() => CellInHand} now
   * @param {(cell: CellInHand) => void} take
   */
  constructor(now, take) {
    [this.now, this.take] = [now, take];
    /** What a `Heat` or a `WordGrid` tells. */
    this.pointer = {
      enter: (row, column) => now().pinned || take({ row, column, pinned: false }),
      press: (row, column) => take({ row, column, pinned: !(now().pinned && now().row === row && now().column === column) }),
      leave: () => now().pinned || take({ row: null, column: null, pinned: false }),
    };
  }

  pin() {
    const cell = this.now();
    if (cell.row !== null) this.take({ ...cell, pinned: !cell.pinned });
  }

  /**
   * @param {{right: number, down: number, rows: number, columns: number, first?: number}} way first: the row where the first key lands
   * @param {{reveal: (row: number, column: number) => void}} picture
   */
  move({ right, down, rows, columns, first }, picture) {
    const { row, column, pinned } = this.now();
    const next = { row: stepped(row, down, rows, first), column: stepped(column, right, columns), pinned };
    this.take(next);
    picture.reveal(next.row, next.column);
  }
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
