// Elements from their parts; nothing here knows what is shown.

/** An element `tag.class.class` with attributes, listeners (`onclick`), `data`, and children (text or nodes). */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name || "div");
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key in made && key !== "list" && key !== "role") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return made;
}

/** Scroll *body*, and nothing around it, until *box* is seen: `scrollIntoView` would move the whole notebook. */
export function reveal(body, box) {
  const inner = box.getBoundingClientRect();
  const outer = body.getBoundingClientRect();
  if (inner.top < outer.top) body.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) body.scrollTop += Math.min(inner.bottom - outer.bottom, inner.top - outer.top);
}

/** A number with a sign, or a question mark. */
export function signed(value) {
  return value == null ? "–" : value > 0 ? `+${value}` : value < 0 ? `−${-value}` : "±0";
}

/** Seconds in the unit that leaves one to three digits before the point. */
export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return "?";
  const size = Math.abs(value);
  for (const [unit, factor] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (size >= factor) return `${(value / factor).toPrecision(3)} ${unit}`;
  return `${(value * 1e9).toPrecision(3)} ns`;
}

/** The same with a sign. */
export function signedSeconds(value) {
  return value == null ? "?" : value === 0 ? "±0" : value > 0 ? `+${seconds(value)}` : `−${seconds(-value)}`;
}

/** `3 states`, `1 state`. */
export function counted(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}
