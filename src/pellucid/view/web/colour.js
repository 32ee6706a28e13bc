// colour.js: every colour that a canvas needs.
// One ramp for weights (yellow to blue, even in lightness, readable without red or green) and eight hues for heads.

/** Ramp from weight 0 to the largest weight: it starts near the paper and ends far from it. */
const RAMPS = {
  light: ["#fbfaf3", "#dedac6", "#b9bbb4", "#909daa", "#6a809d", "#48628d", "#2a457a", "#112b5b"],
  dark: ["#181c22", "#273451", "#42506f", "#666d7e", "#8e8c84", "#b8ac82", "#e0cc86", "#fdf0b1"],
};

/** Eight hues that stay apart for colour-blind readers, on paper and on slate. */
const HUES = {
  light: ["#1f6fb4", "#cf5a0c", "#0a8a6c", "#b1478f", "#a87c00", "#338fb3", "#8a2f3f", "#5f6875"],
  dark: ["#6aaef0", "#f08a4b", "#3fc39c", "#e38cc8", "#e2b93b", "#8fd8ee", "#e0808c", "#a9b2bf"],
};

/** After eight heads the hues come again, with another line. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** The colour of the mean over many heads. */
const MEAN = { light: "#6d7077", dark: "#a2a5ac" };

/** @typedef {"light"|"dark"} Theme */

/** @param {number} head @param {Theme} theme */
export function headColour(head, theme) {
  return HUES[theme][head % 8];
}

/** @param {Theme} theme */
export function meanColour(theme) {
  return MEAN[theme];
}

/**
 * The line of a head: plain, unless another head of the same hue is on.
 * @param {number} head
 * @param {number[]} on
 */
export function headDash(head, on) {
  const alone = !on.some((other) => other !== head && other % 8 === head % 8);
  return alone && on.includes(head) ? [] : DASHES[Math.floor(head / 8) % DASHES.length];
}

/**
 * 256 steps of the ramp, as red, green, blue.
 * @param {Theme} theme
 * @returns {Uint8ClampedArray}
 */
export function ramp(theme) {
  const stops = RAMPS[theme].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const colours = new Uint8ClampedArray(256 * 3);
  for (let step = 0; step < 256; step++) {
    const place = (step / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    for (let part = 0; part < 3; part++) {
      const [low, high] = [stops[below][part], stops[below + 1][part]];
      colours[step * 3 + part] = low + (high - low) * (place - below);
    }
  }
  return colours;
}

/**
 * Where a weight stands on the ramp.
 * @param {number} weight
 * @param {number} largest the weight at the end of the ramp
 * @param {"linear"|"sqrt"} scale sqrt lets small weights be seen
 */
export function rampStep(weight, largest, scale) {
  const share = largest > 0 ? Math.min(1, weight / largest) : 0;
  return Math.round(255 * (scale === "sqrt" ? Math.sqrt(share) : share));
}
