// pointer.js: distinguishes a moving pointer from a page that moves under it; browsers report both alike.
// Scrolling by keyboard, or opening a dialog, must not move the active cell to wherever the mouse happens to be.

/**
 * Listeners that act only when the pointer itself has moved.
 * @param {{over?: (event: MouseEvent) => void, move?: (event: MouseEvent) => void, leave: () => void}} hand
 * @returns {Record<string, (event: MouseEvent) => void>} for `make`
 */
export function onPointer({ over, move, leave }) {
  let rest = "";
  const moved = ({ screenX, screenY }) => rest !== `${screenX},${screenY}`;
  return {
    onmouseover: (event) => over && moved(event) && over(event),
    onmousemove: (event) => {
      if (move && moved(event)) move(event);
      rest = `${event.screenX},${event.screenY}`;
    },
    onmouseleave: (event) => moved(event) && leave(),
  };
}
