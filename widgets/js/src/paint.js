// The colours of states: by distance, by estimated time, or by phase; shapes say the rest.
import { NONE, PHASES } from "./columns.js";
import { h } from "./dom.js";

const DISTANCE = ["#00734a", "#4aa564", "#a8b93a", "#d99c1f", "#d96b27", "#b8372f", "#6d1a36"];
const PHASE = ["#444444", "#2e6da4", "#e0a526"];
const COST = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"];
const UNKNOWN = "#9aa0a6";

/** The colour of each state. */
export function paint(columns, mode) {
  if (mode === "phase") return (n) => PHASE[columns.phase[n]];
  if (mode === "distance") return (n) => (columns.distance[n] === NONE ? UNKNOWN : DISTANCE[Math.min(DISTANCE.length - 1, columns.distance[n])]);
  const [lo, hi] = range(columns);
  const scale = Math.log(hi / lo) || 1;
  return (n) => (columns.seconds[n] >= 0 ? COST[Math.min(COST.length - 1, Math.floor((COST.length * (Math.log(columns.seconds[n] / lo) || 0)) / scale))] : UNKNOWN);
}

/** What the colours mean. */
export function key(mode) {
  const swatch = (colour, text) => h("span", {}, h("i", { style: `background:${colour}` }), text);
  switch (mode) {
    case "phase":
      return PHASES.map((phase, n) => swatch(PHASE[n], phase));
    case "distance":
      return DISTANCE.map((colour, n) => swatch(colour, n === DISTANCE.length - 1 ? `${n}+` : String(n)));
    default:
      return [swatch(COST[0], "quick"), swatch(COST[3], ""), swatch(COST[5], "slow"), swatch(UNKNOWN, "no candidate")];
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
