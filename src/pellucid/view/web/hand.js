// hand.js: the cell in hand, the active one of a picture: how the pointer and arrow keys move it, and its surroundings.

/**
 * The index after a step, clamped to a list.
 * @param {number|null} now null while there is no active cell
 * @param {number} by
 * @param {number} count
 * @param {number} [first] the index after the first key
 */
export function stepped(now, by, count, first = 0) {
  return now === null ? first : Math.min(count - 1, Math.max(0, now + by));
}

/** @typedef {{row: number|null, column: number|null, pinned: boolean}} CellInHand */

/** The active cell of a picture: the pointer activates it, a press pins or unpins it, arrow keys move it. */
export class Cell {
  /**
   * @param {() => CellInHand} now
   * @param {(cell: CellInHand) => void} take
   */
  constructor(now, take) {
    [this.now, this.take] = [now, take];
    /** The callbacks for a `Heat` or a `WordGrid`. */
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
   * @param {{right: number, down: number, rows: number, columns: number, first?: number}} way first: the row after the first key
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
 * A key listener by which Home and End go to the ends of a list.
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
 * At most `most` indices of a list, around the active one.
 * @param {number|null} place
 * @param {number} most
 * @param {number} count
 * @returns {number[]}
 */
export function around(place, most, count) {
  const from = Math.max(0, Math.min(count - most, (place ?? 0) - Math.floor(most / 2)));
  return Array.from({ length: Math.min(most, count) }, (_, at) => from + at);
}
