// The colours of states: by distance, by estimated time, or by phase; a hole says the same without colour.
import { NONE, PHASES } from "./columns.js";
import { h } from "./dom.js";

// Each has a contrast of 3 or more to a white and to a black page.
const DISTANCE = ["#0077bb", "#1a8f8a", "#5f8a2c", "#a07900", "#c86414", "#d4433a", "#b5459a"];
const PHASE = ["#808080", "#2f80c2", "#c07800"];
const COST = ["#7a5cc0", "#3f77c4", "#1f8aa0", "#2d8f57", "#7f8a1c", "#b47a10"];
const UNKNOWN = "#8a8f95";
export const CHOSEN = "#d4433a";
export const MERGE = "#7a6cd0";

/** The part of a state's radius that is its hole, for its place among *many*: the first has none. */
const hollow = (place, many) => (0.75 * place) / (many - 1);

/** The colours and the holes that states have, and which of them each state has. */
export function paint(columns, mode) {
  const colours = [...{ distance: DISTANCE, cost: COST, phase: PHASE }[mode], UNKNOWN];
  const unknown = colours.length - 1;
  const holes = colours.map((_, at) => (mode === "phase" || at === unknown ? 0 : hollow(at, unknown)));
  const find = { distance, cost, phase: () => (n) => columns.phase[n] }[mode](columns);
  const place = new Uint8Array(columns.count);
  for (let n = 0; n < columns.count; n++) {
    const at = columns.wrong.has(n) ? -1 : find(n);
    place[n] = at < 0 ? unknown : at;
  }
  return { colours, holes, place };
}

function distance(columns) {
  return (n) => (columns.distance[n] === NONE ? -1 : Math.min(DISTANCE.length - 1, columns.distance[n]));
}

function cost(columns) {
  const [lo, hi] = range(columns);
  const scale = Math.log(hi / lo) || 1;
  return (n) => (columns.seconds[n] >= 0 ? Math.min(COST.length - 1, Math.floor((COST.length * (Math.log(columns.seconds[n] / lo) || 0)) / scale)) : -1);
}

/** What the colours mean. */
export function key(mode) {
  const swatch = (colour, text, hole = 0) => h("span", {}, h("i", { style: `background:radial-gradient(circle, transparent ${60 * hole}%, ${colour} ${60 * hole + 1}%)` }), text);
  switch (mode) {
    case "phase":
      return PHASES.map((phase, n) => swatch(PHASE[n], phase));
    case "distance":
      return DISTANCE.map((colour, n) => swatch(colour, n === DISTANCE.length - 1 ? `${n}+` : String(n), hollow(n, DISTANCE.length)));
    default:
      return [swatch(COST[0], "quick"), swatch(COST[3], "", hollow(3, COST.length)), swatch(COST[5], "slow", hollow(5, COST.length)), swatch(UNKNOWN, "no candidate")];
  }
}

/** The least and the largest estimated time. */
function range(columns) {
  let lo = Infinity;
  let hi = 0;
  for (let n = 0; n < columns.count; n++) {
    const s = columns.seconds[n];
    if (s >= 0) {
      lo = Math.min(lo, s);
      hi = Math.max(hi, s);
    }
  }
  return [lo, hi];
}
