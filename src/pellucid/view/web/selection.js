// selection.js: the selected cell of a picture: how the pointer and the arrow keys move it, and the indices around it.

/**
 * The index after a step, clamped to a list.
 * @param {number|null} index null while there is no selected cell
 * @param {number} step
 * @param {number} count
 * @param {number} [first] the index after the first key
 */
export function clampedStep(index, step, count, first = 0) {
  return index === null ? first : Math.min(count - 1, Math.max(0, index + step));
}

/** @typedef {{row: number|null, column: number|null, pinned: boolean}} SelectedCell */

/** The selected cell of a picture: the pointer selects it, a press pins or unpins it, the arrow keys move it. */
export class CellSelection {
  /**
   * @param {() => SelectedCell} current
   * @param {(cell: SelectedCell) => void} select
   */
  constructor(current, select) {
    [this.current, this.select] = [current, select];
    /** The callbacks for a `Heatmap` or a `WordGrid`. */
    this.pointer = {
      enter: (row, column) => current().pinned || select({ row, column, pinned: false }),
      press: (row, column) => select({ row, column, pinned: !(current().pinned && current().row === row && current().column === column) }),
      leave: () => current().pinned || select({ row: null, column: null, pinned: false }),
    };
  }

  pin() {
    const cell = this.current();
    if (cell.row !== null) this.select({ ...cell, pinned: !cell.pinned });
  }

  /**
   * @param {{right: number, down: number, rows: number, columns: number, first?: number}} step first: the row after the first key
   * @param {{reveal: (row: number, column: number) => void}} picture
   */
  move({ right, down, rows, columns, first }, picture) {
    const { row, column, pinned } = this.current();
    const next = { row: clampedStep(row, down, rows, first), column: clampedStep(column, right, columns), pinned };
    this.select(next);
    picture.reveal(next.row, next.column);
  }
}

/**
 * A key listener by which Home and End go to the ends of a list.
 * @param {(right: number, down: number) => void} move
 */
export function onHomeAndEnd(move) {
  return (event) => {
    const down = { Home: -Infinity, End: Infinity }[event.key];
    if (down === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(0, down);
  };
}

/**
 * At most `size` indices of a list, around the selected one.
 * @param {number|null} index
 * @param {number} size
 * @param {number} count
 * @returns {number[]}
 */
export function windowAround(index, size, count) {
  const from = Math.max(0, Math.min(count - size, (index ?? 0) - Math.floor(size / 2)));
  return Array.from({ length: Math.min(size, count) }, (_, offset) => from + offset);
}
