// pointer.js: distinguishes a moving pointer from a page that moves under it; browsers report both alike.
// Scrolling by keyboard, or opening a dialog, must not move the selected cell to wherever the mouse happens to be.

/**
 * Listeners that act only when the pointer itself has moved.
 * @param {{over?: (event: MouseEvent) => void, move?: (event: MouseEvent) => void, leave: () => void}} listeners
 * @returns {Record<string, (event: MouseEvent) => void>} for `make`
 */
export function onPointer({ over, move, leave }) {
  let lastPosition = "";
  const moved = ({ screenX, screenY }) => lastPosition !== `${screenX},${screenY}`;
  return {
    onmouseover: (event) => over && moved(event) && over(event),
    onmousemove: (event) => {
      if (move && moved(event)) move(event);
      lastPosition = `${event.screenX},${event.screenY}`;
    },
    onmouseleave: (event) => moved(event) && leave(),
  };
}
