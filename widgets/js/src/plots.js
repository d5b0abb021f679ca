// The candidates of a search as plots that are linked: best over time, cost by steps, error by time; those that have data.
import { counted, h, seconds } from "./dom.js";

const W = 320;
const H = 170;
const PAD = { left: 58, right: 10, top: 8, bottom: 34 };
const PAUSE = 400;

/** Each plot: its axes, and the place of a candidate; less is better along both. */
const PLOTS = [
  { name: "best over time", x: "time of the search", y: "estimated time", at: (c) => [c.found, c.seconds] },
  { name: "cost by steps", x: "steps", y: "estimated time", at: (c) => [c.steps, c.seconds] },
  { name: "error by time", x: "measured time", y: "largest error, as measured", at: (c) => [c.measured, c.error] },
];

export function plotsView({ pick }) {
  const holder = h("div");
  const root = h("details.ein-plots", { hidden: true, ontoggle: () => draw() }, h("summary", {}, "Plots"), holder);
  let latest = null;
  let rows = new Map();
  let waiting = 0;

  /** Show the candidates of *columns*, pale where *matches* (null: all) does not flag them, soon. */
  function show(columns, matches, selected) {
    latest = { columns, matches, selected };
    root.hidden = columns.found.size === 0;
    if (root.open && !waiting) waiting = setTimeout(draw, PAUSE);
  }

  function draw() {
    clearTimeout(waiting);
    waiting = 0;
    if (!latest || !root.open) return;
    const candidates = [...latest.columns.found.values()].map((c) => ({ ...c, ...rows.get(c.state) }));
    holder.replaceChildren(...PLOTS.flatMap((plot) => picture(plot, candidates) ?? []));
  }

  function picture(plot, candidates) {
    const points = candidates.map((c) => [c, ...plot.at(c)]).filter(([, x, y]) => Number.isFinite(x) && Number.isFinite(y));
    if (!points.length) return null;
    points.sort((a, b) => a[1] - b[1] || a[2] - b[2]);
    const px = scale(points.map(([, x]) => x), PAD.left, W - PAD.right, false);
    const py = scale(points.map(([, , y]) => y), H - PAD.bottom, PAD.top, true);
    const best = [];
    for (const point of points) if (!best.length || point[2] < best.at(-1)[2]) best.push(point);
    const stairs = best.map(([, x, y], n) => `${n ? `H${px(x)}V` : `M${px(x)} `}${py(y)}`).join("");
    const seen = new Set();
    const dots = [];
    const front = new Set(best.map(([c]) => c));
    const isChosen = ([c]) => c.state === latest.selected;
    for (const [c, x, y] of [...points.filter(isChosen), ...best, ...points]) {
      const place = `${Math.round(px(x))} ${Math.round(py(y))}`; // of many upon one another the first is seen
      if (seen.has(place)) continue;
      seen.add(place);
      const off = latest.matches && !latest.matches[c.state];
      const kind = `${front.has(c) ? "best " : ""}${off ? "off " : ""}${isChosen([c]) ? "chosen" : ""}`;
      dots.push(svg("circle", { cx: px(x), cy: py(y), r: 4, class: kind, "data-state": c.state }, svg("title", {}, `state ${c.state}: ${c.operators}, ${value(plot.x, x)}, ${value(plot.y, y)}`)));
    }
    const [xs, ys] = [points.map(([, x]) => x), points.map(([, , y]) => y)];
    const drawn = svg(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${plot.name}: ${counted(points.length, "candidate")}, ${best.length} of them the best` },
      svg("path", { class: "axis", d: `M${PAD.left - 6} ${PAD.top}V${H - PAD.bottom + 6}H${W - PAD.right}` }),
      svg("path", { class: "front", d: `${stairs}H${W - PAD.right}` }),
      ...ends(xs).map((x, n) => svg("text", { x: px(x), y: H - PAD.bottom + 19, "text-anchor": n ? "end" : "start" }, value(plot.x, x))),
      ...ends(ys).map((y) => svg("text", { x: PAD.left - 9, y: py(y) + 4, "text-anchor": "end" }, value(plot.y, y))),
      svg("text", { x: (PAD.left + W) / 2, y: H - 3, "text-anchor": "middle" }, plot.x),
      ...dots,
    );
    drawn.addEventListener("click", (event) => {
      const state = event.target.closest("circle")?.dataset.state;
      if (state) pick(Number(state));
    });
    return h("figure", {}, h("figcaption", {}, `${plot.name}: ${plot.y}`), drawn);
  }

  return {
    root,
    show,
    /** Take in what was measured: rows of the benchmark, whose keys name states. */
    measured(next) {
      rows = new Map(next.flatMap((row) => (row.key.startsWith("state ") && row.measured ? [[Number(row.key.slice(6)), { measured: row.measured, error: row.error }]] : [])));
      draw();
    },
    destroy: () => clearTimeout(waiting),
  };
}

const ends = (values) => [...new Set([Math.min(...values), Math.max(...values)])];

function value(axis, number) {
  if (axis === "steps") return counted(number, "step");
  return axis.startsWith("largest error") ? number.toExponential(1) : seconds(number);
}

/** The places of *values* between *from* and *to*, by their logarithms where they are far apart. */
function scale(values, from, to, maybeLog) {
  const [lo, hi] = [Math.min(...values), Math.max(...values)];
  const f = maybeLog && lo > 0 && hi / lo > 10 ? Math.log : (v) => v;
  return (v) => (hi === lo ? (from + to) / 2 : from + ((f(v) - f(lo)) / (f(hi) - f(lo))) * (to - from));
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, given] of Object.entries(attributes)) made.setAttribute(name, given);
  made.append(...children);
  return made;
}
