// Columns whose widths the reader changes, by mouse or by keys; the browser remembers them.
import { h } from "./dom.js";

const STORE = "einnet-columns";
/** Least widths of the columns in pixels, and the part of the width that a key moves. */
const LEAST = { left: 150, middle: 260, right: 220 };
const STEP = 0.02;

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

function remember(parts) {
  try {
    localStorage.setItem(STORE, JSON.stringify(parts));
  } catch {
    // a page without storage forgets them
  }
}

/** Two separators for the columns of *grid*: they set `--ein-left` and `--ein-right`, in percent of its width. */
export function separators(grid) {
  let parts = remembered();
  const made = { left: separator("left", "derivation"), right: separator("right", "rules") };

  function show() {
    for (const side of ["left", "right"]) {
      const known = Number.isFinite(parts[side]);
      if (known) grid.style.setProperty(`--ein-${side}`, `${100 * parts[side]}%`);
      else grid.style.removeProperty(`--ein-${side}`);
      made[side].setAttribute("aria-valuenow", String(Math.round(100 * (parts[side] ?? 0.25))));
    }
  }

  /** The part of the width that the column has now. */
  function now(side) {
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").map(parseFloat);
    return (side === "left" ? columns[0] : columns.at(-1)) / grid.clientWidth;
  }

  function set(side, part) {
    const wide = grid.clientWidth;
    const other = now(side === "left" ? "right" : "left");
    const most = 1 - other - (LEAST.middle + 20) / wide;
    parts = { ...parts, [side]: Math.max(LEAST[side] / wide, Math.min(most, part)) };
    show();
  }

  function separator(side, name) {
    const sign = side === "left" ? 1 : -1;
    const bar = h(`div.ein-separator.${side}`, { tabIndex: 0, role: "separator", ariaLabel: `width of the column ${name}`, title: "drag, or arrow keys: width; double click: as it was" });
    bar.setAttribute("aria-orientation", "vertical");
    let drag = null;
    bar.addEventListener("pointerdown", (event) => {
      bar.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, part: now(side) };
    });
    bar.addEventListener("pointermove", (event) => drag && set(side, drag.part + (sign * (event.clientX - drag.x)) / grid.clientWidth));
    for (const end of ["pointerup", "pointercancel"])
      bar.addEventListener(end, () => {
        if (drag) remember(parts);
        drag = null;
      });
    bar.addEventListener("dblclick", () => {
      parts = { ...parts, [side]: null };
      show();
      remember(parts);
    });
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (!step) return;
      set(side, now(side) + sign * step);
      remember(parts);
      event.preventDefault();
      event.stopPropagation();
    });
    return bar;
  }

  show();
  return [made.left, made.right];
}
