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
    const candidates = [...latest.columns.found.values()].filter((c) => !latest.columns.wrong.has(c.state)).map((c) => ({ ...c, ...rows.get(c.state) }));
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
    const front = new Set(best.map(([c]) => c));
    const isChosen = ([c]) => c.state === latest.selected;
    const says = ([c, x, y]) => `state ${c.state}: ${c.operators}, ${value(plot.x, x)}, ${value(plot.y, y)}`;
    const circles = [];
    const others = []; // thousands: a dot is a line without length in one path
    for (const point of [...points.filter(isChosen), ...best, ...points]) {
      const at = { x: Math.round(px(point[1])), y: Math.round(py(point[2])), point };
      const place = at.x * H + at.y; // of many upon one another the first is seen
      if (seen.has(place)) continue;
      seen.add(place);
      at.off = latest.matches && !latest.matches[point[0].state];
      if (!front.has(point[0]) && !isChosen(point)) {
        others.push(at);
        continue;
      }
      const kind = `${front.has(point[0]) ? "best " : ""}${at.off ? "off " : ""}${isChosen(point) ? "chosen" : ""}`;
      circles.push(svg("circle", { cx: at.x, cy: at.y, r: 4, class: kind, "data-state": point[0].state }, svg("title", {}, says(point))));
    }
    const dots = (off) => svg("path", { class: off ? "dots off" : "dots", d: others.filter((at) => Boolean(at.off) === off).map(({ x, y }) => `M${x} ${y}h0`).join("") }, svg("title", {}));
    const [xs, ys] = [points.map(([, x]) => x), points.map(([, , y]) => y)];
    const drawn = svg(
      "svg",
      { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${plot.name}: ${counted(points.length, "candidate")}, ${best.length} of them the best` },
      svg("path", { class: "axis", d: `M${PAD.left - 6} ${PAD.top}V${H - PAD.bottom + 6}H${W - PAD.right}` }),
      svg("path", { class: "front", d: `${stairs}H${W - PAD.right}` }),
      ...ends(xs).map((x, n) => svg("text", { x: px(x), y: H - PAD.bottom + 19, "text-anchor": n ? "end" : "start" }, value(plot.x, x))),
      ...ends(ys).map((y) => svg("text", { x: PAD.left - 9, y: py(y) + 4, "text-anchor": "end" }, value(plot.y, y))),
      svg("text", { x: (PAD.left + W) / 2, y: H - 3, "text-anchor": "middle" }, plot.x),
      dots(true),
      dots(false),
      ...circles.reverse(), // the chosen one above all
    );
    /** The candidate whose dot is pointed at. */
    const under = (event) => {
      const box = drawn.getBoundingClientRect();
      const [x, y] = [((event.clientX - box.left) * W) / box.width, ((event.clientY - box.top) * H) / box.height];
      const far = (at) => Math.hypot(at.x - x, at.y - y);
      return others.reduce((near, at) => (near && far(near) <= far(at) ? near : at), null)?.point;
    };
    drawn.addEventListener("pointermove", (event) => {
      if (event.target.matches(".dots")) event.target.firstChild.textContent = says(under(event));
    });
    drawn.addEventListener("click", (event) => {
      const state = event.target.closest("circle")?.dataset.state ?? (event.target.matches(".dots") ? under(event)[0].state : null);
      if (state != null) pick(Number(state));
    });
    return h("figure", {}, h("figcaption", {}, `${plot.name}: ${plot.y}`), drawn);
  }

  return {
    root,
    show,
    /** Take in the times and errors of measured *states*. */
    measured(states) {
      rows = new Map(states.map(({ state, measured, error }) => [state, { measured, error }]));
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
