// The search tree on a canvas: drawn in chunks, culled, one edge a pixel where many would lie upon one another.
import { counted, h, seconds } from "./dom.js";
import { Columns, NONE, PHASES, layout } from "./columns.js";
import { filter } from "./filter.js";
import { CHOSEN, MERGE, key, paint } from "./paint.js";

const CHUNK = 200;
const MERGES = 4000;
const SLOTS = 1 << 16;
const EDGE = 16;
const STRIP = 14;
const LABEL = 11;
const REST = 150;
const WHOLE = { kx: 1, ky: 1, x: 0, y: 0 };

export function treeView({ onselect, onhover = () => {} }) {
  const canvas = h("canvas");
  const tip = h("div.ein-tip", { hidden: true });
  const legend = h("div.ein-legend");
  const said = h("span");
  const empty = h("div.ein-empty", {}, "No search yet: press ▶ Search, or s.");
  const root = h("div.ein-tree", { tabIndex: 0, role: "img", ariaLabel: "search tree" }, canvas, empty, legend, tip);
  const pen = canvas.getContext("2d");
  let columns = new Columns();
  let placed = layout(columns);
  let view = WHOLE;
  let size = { w: 0, h: 0 };
  let selected = -1;
  let mode = "distance";
  let test = null;
  let matches = null;
  let found = 0;
  let isOnly = false;
  let hasMerges = true;
  let best = -1;
  let waiting = false;
  let hovered = -1;
  let resting = 0;
  const times = { layout: 0, draw: 0 };

  /** Places in pixels while the whole tree is seen. */
  let flat = null;
  /** Colours and holes of states. */
  let looks = null;

  function flatten() {
    const n = columns.count;
    const [x, y] = [new Float64Array(n), new Float64Array(n)];
    const step = (size.w - 2 * EDGE) / Math.max(1, placed.leaves - 1);
    const rise = (size.h - 2 * EDGE - (legend.offsetHeight || LABEL)) / Math.max(1, placed.rows);
    for (let k = 0; k < n; k++) {
      x[k] = placed.leaves === 1 ? size.w / 2 : EDGE + placed.x[k] * step;
      y[k] = EDGE + placed.row[k] * rise;
    }
    return { x, y };
  }

  const spots = () => (flat ??= flatten());
  const px = (n) => spots().x[n] * view.kx + view.x;
  const py = (n) => spots().y[n] * view.ky + view.y;

  function request() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  /** Lines between pairs of states; of those that cover the same pixels in one row, *once* leaves one. */
  function lines(pairs, count, colour, dash, once = false) {
    const taken = once ? new Float64Array(SLOTS) : null;
    pen.strokeStyle = colour;
    pen.setLineDash(dash);
    pen.beginPath();
    let begun = 0;
    for (let k = 0; k < count; k++) {
      const [a, b] = pairs(k);
      if (a < 0) continue;
      const [x1, y1, x2, y2] = [px(a), py(a), px(b), py(b)];
      if ((x1 < 0 && x2 < 0) || (x1 > size.w && x2 > size.w) || (y1 < 0 && y2 < 0) || (y1 > size.h && y2 > size.h)) continue;
      if (once) {
        const [from, to, row] = [Math.round(x1), Math.round(x2), placed.row[a] + 1];
        const slot = (from * 7919 + to * 104729 + row * 31) & (SLOTS - 1);
        const line = (row * SLOTS + from) * SLOTS + to;
        if (taken[slot] === line) continue;
        taken[slot] = line;
      }
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
      if (++begun >= CHUNK) {
        pen.stroke();
        pen.beginPath();
        begun = 0;
      }
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  function draw() {
    const began = performance.now();
    const n = columns.count;
    const dense = window.devicePixelRatio || 1;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, size.w, size.h);
    empty.hidden = n > 0;
    if (!n || !size.w) return;
    const faint = getComputedStyle(root).color;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.25;
    const pair = [0, 0];
    lines(
      (k) => {
        pair[0] = placed.row[k + 1] < 0 ? -1 : columns.parent[k + 1];
        pair[1] = k + 1;
        return pair;
      },
      n - 1,
      faint,
      [],
      true,
    );
    const merges = !hasMerges ? [] : isOnly && matches ? columns.merges.filter(([a, b]) => placed.row[a] >= 0 && placed.row[b] >= 0) : columns.merges;
    const some = Math.min(merges.length, MERGES);
    pen.globalAlpha = some > 400 ? 0.12 : 0.35;
    lines((k) => merges[merges.length - 1 - k], some, MERGE, [3, 3]);
    pen.globalAlpha = 1;
    dots(n);
    if (selected >= 0 && selected < n && placed.row[selected] >= 0) highlight();
    labels(n);
    if (view.kx > 1) overview(n);
    times.draw = performance.now() - began;
    root.dataset.count = n;
    root.dataset.times = JSON.stringify(times);
    said.textContent = `${counted(n, "state")}, ${counted(columns.merges.length, "merge")}`;
  }

  function dots(n) {
    const { colours, holes, place } = (looks ??= paint(columns, mode));
    const spacing = ((size.w - 2 * EDGE) * view.kx) / placed.leaves;
    const radius = Math.max(1.4, Math.min(6, spacing / 2.4));
    const wide = Math.ceil(size.w) + 1;
    const taken = radius < 2 ? new Uint8Array(wide * (Math.ceil(size.h) + 1)) : null;
    const groups = Array.from({ length: 2 * colours.length }, () => []);
    for (let k = n - 1; k >= 0; k--) {
      if (placed.row[k] < 0) continue;
      const x = px(k);
      const y = py(k);
      if (x < -9 || y < -9 || x > size.w + 9 || y > size.h + 9) continue;
      const on = !matches || matches[k] ? 1 : 0;
      if (taken) {
        const cell = Math.round(y) * wide + Math.round(x);
        if (taken[cell] & (1 << on)) continue;
        taken[cell] |= 1 << on;
      }
      groups[on * colours.length + place[k]].push(x, y, columns.wrong.has(k) ? 2 : columns.candidate(k) ? 1 : 0);
    }
    groups.forEach((found, at) => {
      pen.globalAlpha = at >= colours.length ? 1 : isOnly ? 0.5 : 0.12;
      pen.fillStyle = colours[at % colours.length];
      const hole = holes[at % colours.length] * radius;
      if (radius < 2.4) for (let k = 0; k < found.length; k += 3) pen.fillRect(found[k] - radius, found[k + 1] - radius, 2 * radius, 2 * radius);
      else for (let k = 0; k < found.length; k += 3) shape(found[k], found[k + 1], found[k + 2], radius, hole);
    });
    pen.globalAlpha = 1;
    if (best >= 0 && best < n && placed.row[best] >= 0) {
      pen.strokeStyle = getComputedStyle(root).color;
      pen.lineWidth = 1.5;
      pen.strokeRect(px(best) - radius - 3, py(best) - radius - 3, 2 * radius + 6, 2 * radius + 6);
    }
  }

  /** A cross of a false candidate (*kind* 2), a square of another (1), or a circle, with a *hole* of this radius. */
  function shape(x, y, kind, radius, hole) {
    pen.beginPath();
    if (kind === 2) {
      for (const turn of [-1, 1]) {
        pen.moveTo(x - radius, y - turn * radius);
        pen.lineTo(x + radius, y + turn * radius);
      }
      pen.lineWidth = Math.max(1, radius / 2.5);
      pen.strokeStyle = CHOSEN;
      return pen.stroke();
    }
    if (kind) pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else pen.arc(x, y, radius, 0, 6.3);
    if (hole) {
      pen.moveTo(x + hole, y);
      pen.arc(x, y, hole, 0, 6.3);
    }
    pen.fill("evenodd");
  }

  /** The last rule of each state, or the calls of a candidate, where there is room for it. */
  function labels(n) {
    if (((size.w - 2 * EDGE) * view.kx) / placed.leaves < 3 * LABEL) return;
    pen.font = `${LABEL}px sans-serif`;
    pen.fillStyle = getComputedStyle(root).color;
    const rows = Array.from({ length: placed.rows + 1 }, () => []);
    for (let k = 1; k < n; k++) if (placed.row[k] >= 0 && px(k) > -200 && px(k) < size.w) rows[placed.row[k]].push(k);
    for (const row of rows) {
      row.sort((a, b) => placed.x[a] - placed.x[b]);
      row.forEach((k, at) => {
        const text = columns.found.get(k)?.operators || (columns.rules[columns.rule[k]] ?? "").replaceAll("_", " ");
        const x = px(k) + 9;
        const next = at + 1 < row.length ? px(row[at + 1]) - 9 : size.w;
        if ((!matches || matches[k] || isOnly) && x + pen.measureText(text).width < next) pen.fillText(text, x, py(k) + 4);
      });
    }
  }

  /** The whole breadth as a strip: candidates or matches, and what of it is seen; a click there goes there. */
  function overview(n) {
    const colour = getComputedStyle(root).color;
    pen.globalAlpha = 0.1;
    pen.fillStyle = colour;
    pen.fillRect(0, 0, size.w, STRIP);
    pen.globalAlpha = 1;
    const taken = new Set();
    for (let k = 0; k < n; k++) {
      if (placed.row[k] < 0 || !(matches ? matches[k] : columns.candidate(k))) continue;
      const x = Math.round(spots().x[k]);
      if (taken.has(x)) continue;
      taken.add(x);
      pen.fillRect(x, 4, 1, STRIP - 8);
    }
    pen.strokeStyle = CHOSEN;
    pen.lineWidth = 2;
    pen.strokeRect(-view.x / view.kx, 1, size.w / view.kx, STRIP - 2);
    pen.lineWidth = 1;
  }

  function highlight() {
    pen.strokeStyle = CHOSEN;
    pen.lineWidth = 2.5;
    pen.beginPath();
    const way = columns.way(selected);
    way.forEach((n, k) => (k ? pen.lineTo(px(n), py(n)) : pen.moveTo(px(n), py(n))));
    pen.stroke();
    pen.beginPath();
    pen.arc(px(selected), py(selected), 7, 0, 6.3);
    pen.stroke();
    pen.lineWidth = 1;
  }

  function hit(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    let found = -1;
    let nearest = 144;
    for (let n = 0; n < columns.count; n++) {
      if (placed.row[n] < 0) continue;
      const d = (px(n) - x) ** 2 + (py(n) - y) ** 2;
      if (d < nearest) [found, nearest] = [n, d];
    }
    return found;
  }

  function describe(n) {
    const parts = [`state ${n}`, columns.wrong.has(n) ? "false candidate" : columns.candidate(n) ? "candidate" : PHASES[columns.phase[n]], `depth ${columns.depth[n]}`];
    if (columns.distance[n] !== NONE) parts.push(`distance ${columns.distance[n]}`);
    if (columns.seconds[n] >= 0) parts.push(seconds(columns.seconds[n]));
    if (columns.found.get(n)?.operators) parts.push(columns.found.get(n).operators);
    else if (n) parts.push((columns.rules[columns.rule[n]] ?? "").replaceAll("_", " "));
    return parts.filter(Boolean).join(" · ");
  }

  function point(event) {
    const n = hit(event);
    canvas.style.cursor = n >= 0 ? "pointer" : "grab";
    if (n === hovered) return;
    leave();
    if (n < 0) return;
    hovered = n;
    show(describe(n));
    resting = setTimeout(() => onhover(n), REST);
  }

  function leave() {
    clearTimeout(resting);
    hovered = -1;
    tip.hidden = true;
  }

  /** Show *parts* at the state that is pointed at: to its side, and inside the tree. */
  function show(...parts) {
    tip.hidden = false;
    tip.replaceChildren(...parts);
    const [x, y] = [px(hovered), py(hovered)];
    const right = x + 12 + tip.offsetWidth <= size.w - 4;
    tip.style.left = `${Math.max(4, right ? x + 12 : x - 12 - tip.offsetWidth)}px`;
    tip.style.top = `${Math.max(4, Math.min(y - 12, size.h - tip.offsetHeight - 4))}px`;
  }

  /** Zoom along the breadth, or along *both* axes, about a point of the canvas. */
  function zoom(factor, both = false, x = size.w / 2, y = size.h / 2) {
    const kx = Math.min(2000, Math.max(1, view.kx * factor));
    const ky = both ? Math.min(20, Math.max(1, view.ky * factor)) : view.ky;
    view = { kx, ky, x: x - ((x - view.x) * kx) / view.kx, y: y - ((y - view.y) * ky) / view.ky };
    if (kx === 1 && ky === 1) view = WHOLE;
    request();
  }

  /** Show the part of the breadth around *x* of the strip. */
  function travel(x) {
    view = { ...view, x: size.w / 2 - x * view.kx };
    request();
  }

  /** Flag what the filter finds from state *from* on. */
  function sift(from = 0) {
    if (!test) {
      matches = null;
      found = 0;
      return;
    }
    const flags = new Uint8Array(columns.count);
    if (from && matches) flags.set(matches.subarray(0, from));
    for (let n = from; n < columns.count; n++) flags[n] = test(columns, n) ? 1 : 0;
    matches = flags;
    found = flags.reduce((sum, flag) => sum + flag, 0);
  }

  function place() {
    const began = performance.now();
    placed = layout(columns, isOnly && matches ? columns.ways(matches) : null);
    flat = looks = null;
    times.layout = performance.now() - began;
    request();
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    const box = canvas.getBoundingClientRect();
    const strip = view.kx > 1 && event.clientY - box.top < STRIP;
    drag = { x: event.clientX, y: event.clientY, moved: strip, strip };
    if (strip) travel(event.clientX - box.left);
    canvas.setPointerCapture?.(event.pointerId);
    root.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return point(event);
    if (drag.strip) return travel(event.clientX - canvas.getBoundingClientRect().left);
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag = { x: event.clientX, y: event.clientY, moved: true };
    view = { ...view, x: view.x + dx, y: view.y + dy };
    request();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const n = hit(event);
      if (n >= 0) onselect(n);
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener(
    "wheel",
    (event) => {
      // The page scrolls, until the reader has come into the tree.
      if (!event.ctrlKey && !root.contains(document.activeElement) && root.getRootNode().activeElement !== root) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), event.shiftKey || event.altKey, event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );

  const observer = new ResizeObserver(() => {
    const box = root.getBoundingClientRect();
    if (!box.width || (box.width === size.w && box.height === size.h)) return;
    size = { w: root.clientWidth, h: root.clientHeight };
    flat = null;
    const dense = window.devicePixelRatio || 1;
    canvas.width = size.w * dense;
    canvas.height = size.h * dense;
    request();
  });
  observer.observe(root);
  for (const end of ["transitionend", "transitioncancel"]) root.addEventListener(end, request);

  function explain() {
    legend.replaceChildren(h("span", {}, mode), ...key(mode), h("span", {}, "■ candidate"), columns.wrong.size ? h("span", {}, "✕ false candidate") : "", h("span", {}, "┄ merge"), said);
  }
  explain();

  return {
    root,
    get columns() {
      return columns;
    },
    get selected() {
      return selected;
    },
    /** Take in states; false where some before them are missing. */
    append(header, buffer) {
      const known = columns.count;
      if (!columns.append(header, buffer)) return false;
      sift(known);
      place();
      return true;
    },
    clear() {
      columns = new Columns();
      sift();
      selected = best = -1;
      view = WHOLE;
      place();
    },
    /** A flag for each state that the filter finds, null without a filter. */
    get matches() {
      return matches;
    },
    get found() {
      return found;
    },
    /** Draw only the ways to what the filter finds. */
    only(on) {
      isOnly = on;
      place();
    },
    showMerges(on) {
      hasMerges = on;
      request();
    },
    select(n) {
      selected = n;
      root.ariaLabel = n >= 0 && n < columns.count ? `search tree: ${describe(n)}` : "search tree";
      request();
    },
    best(n) {
      best = n;
      request();
    },
    /** Mark the false candidates: groups of a rule, why it is wrong, and states. */
    refute(groups) {
      const wrong = new Map(groups.flatMap(({ rule, why, states }) => states.map((n) => [n, { rule, why }])));
      if (wrong.size === columns.wrong.size) return false;
      columns.wrong = wrong;
      looks = null;
      explain();
      sift();
      request();
      return true;
    },
    colour(next) {
      mode = next;
      looks = null;
      explain();
      request();
    },
    filter(next) {
      test = filter(next, columns);
      sift();
      place();
    },
    fit() {
      view = WHOLE;
      request();
    },
    /** Arrows walk the tree, + and - zoom. */
    key(event) {
      const here = Math.max(0, selected);
      const siblings = () => {
        const all = [];
        for (let k = placed.first[columns.parent[here]]; k >= 0; k = placed.next[k]) all.push(k);
        return all;
      };
      const to = {
        ArrowUp: () => (here ? columns.parent[here] : 0),
        ArrowDown: () => (placed.first[here] >= 0 ? placed.first[here] : here),
        ArrowRight: () => (here ? siblings()[(siblings().indexOf(here) + 1) % siblings().length] : 0),
        ArrowLeft: () => (here ? siblings().at(siblings().indexOf(here) - 1) : 0),
      }[event.key];
      if (to && columns.count) onselect(to());
      else if (event.key === "+" || event.key === "=") zoom(1.5);
      else if (event.key === "-") zoom(1 / 1.5, true);
      else return false;
      return true;
    },
    /** Show more of state *n*, if it is still pointed at. */
    tell(n, ...parts) {
      if (n === hovered) show(h("b", {}, describe(n)), ...parts.filter(Boolean));
    },
    /** Take in why moves were not followed. */
    explain(texts, buffer) {
      columns.explain(texts, buffer);
    },
    /** Where state *n* is drawn, in pixels of the canvas. */
    place: (n) => [px(n), py(n)],
    destroy: () => observer.disconnect(),
  };
}
