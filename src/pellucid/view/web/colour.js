// colour.js: every colour that a canvas needs.
// One ramp for weights (yellow to blue, even in lightness, readable without red or green) and eight hues for heads.

/** Ramp from weight 0 to the largest weight: it starts near the background colour and ends far from it. */
const RAMPS = {
  light: ["#fbfaf3", "#dedac6", "#b9bbb4", "#909daa", "#6a809d", "#48628d", "#2a457a", "#112b5b"],
  dark: ["#181c22", "#273451", "#42506f", "#666d7e", "#8e8c84", "#b8ac82", "#e0cc86", "#fdf0b1"],
};

/** From the most negative number through 0, the background colour, to the most positive: blue and orange, distinct for all readers. */
const SIGNED = {
  light: ["#0b3470", "#2b62a6", "#6f9fd0", "#bcd3e6", "#fbfaf3", "#f0cfa4", "#dc9445", "#b15a10", "#6e3103"],
  dark: ["#b5dcff", "#6fa8e2", "#3f6ea3", "#253f5c", "#181c22", "#54381f", "#94602a", "#d9974f", "#ffd9ac"],
};

/** Eight hues that differ by 24 or more in CIELAB for readers without red, green or blue cones, in both themes. */
const HUES = {
  light: ["#1f6fb4", "#bc7f05", "#11442c", "#986d8e", "#9d2d05", "#441b9d", "#819254", "#730560"],
  dark: ["#6aaef0", "#c1520a", "#b2d841", "#fa8aab", "#22794d", "#8377fa", "#dfbc83", "#855c97"],
};

/** After eight heads the hues repeat, with another dash pattern. */
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
 * The dash pattern of a head's line: none, unless another head of the same hue is on.
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
  return blend(RAMPS[theme]);
}

/**
 * 256 steps of the ramp for signed numbers; 0 is step 127.5.
 * @param {Theme} theme
 * @returns {Uint8ClampedArray}
 */
export function signedRamp(theme) {
  return blend(SIGNED[theme]);
}

/**
 * A step of a ramp as a CSS colour.
 * @param {Uint8ClampedArray} colours
 * @param {number} step
 */
export function stepColour(colours, step) {
  const at = 3 * step;
  return `rgb(${colours[at]} ${colours[at + 1]} ${colours[at + 2]})`;
}

/** Interpolates some colours in even steps. */
function blend(hexes) {
  const stops = hexes.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const colours = new Uint8ClampedArray(256 * 3);
  for (let step = 0; step < 256; step++) {
    const position = (step / 255) * (stops.length - 1);
    const below = Math.min(Math.floor(position), stops.length - 2);
    for (let part = 0; part < 3; part++) {
      const [low, high] = [stops[below][part], stops[below + 1][part]];
      colours[step * 3 + part] = low + (high - low) * (position - below);
    }
  }
  return colours;
}

/**
 * The step of a weight on the ramp; the first step if it is below 0.
 * @param {number} weight
 * @param {number} largest the weight at the end of the ramp
 * @param {"linear"|"sqrt"} scale sqrt makes small weights visible
 */
export function rampStep(weight, largest, scale) {
  const share = largest > 0 ? Math.max(0, Math.min(1, weight / largest)) : 0;
  return Math.round(255 * (scale === "sqrt" ? Math.sqrt(share) : share));
}

/**
 * The step of a number on the signed ramp.
 * @param {number} value
 * @param {number} largest the largest absolute value: its negative is the first step, itself the last
 * @param {"linear"|"sqrt"} scale sqrt makes small numbers visible
 */
export function signedStep(value, largest, scale) {
  const share = largest > 0 ? Math.max(-1, Math.min(1, value / largest)) : 0;
  return Math.round(127.5 + 127.5 * (scale === "sqrt" ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share));
}
