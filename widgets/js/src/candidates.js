// The candidates of a search: all of them, sorted by any column, those with the same calls in one row.
import { counted, h, seconds } from "./dom.js";

const ROWS = 100;
const PAUSE = 400;
const COLUMNS = [
  { name: "state", value: (c) => c.state },
  { name: "library operators", value: (c) => c.operators },
  { name: "eOperators", value: (c) => c.eoperators },
  { name: "rules", value: (c, columns) => columns.rulesOn(c.state).join(", ") },
  { name: "steps", value: (c) => c.steps },
  { name: "estimated", value: (c) => c.seconds, shown: seconds },
  { name: "measured", value: (c, _, times) => times.get(c.state) ?? Infinity, shown: (time) => (Number.isFinite(time) ? seconds(time) : "") },
  { name: "numerics", value: (c, columns) => (columns.wrong.has(c.state) ? `✗ false: rule ${columns.wrong.get(c.state).rule}` : (c.numerics ?? "")) },
];
const ESTIMATED = COLUMNS.findIndex(({ name }) => name === "estimated");

export function candidateTable({ pick }) {
  let by = ESTIMATED;
  let down = false;
  let open = "";
  let waiting = 0;
  let latest = null;
  let times = new Map();
  const together = h("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const caption = h("caption");
  const head = h("tr");
  const body = h("tbody");
  const root = h(
    "div.ein-top",
    { hidden: true },
    h("label", {}, together, " the same calls in one row"),
    h("table", {}, caption, h("thead", {}, head), body),
  );

  /** Show the candidates of *columns* that *matches* flags (null: all), soon. */
  function show(columns, matches, selected) {
    latest = { columns, matches, selected };
    if (!waiting) waiting = setTimeout(draw, body.childElementCount ? PAUSE : 0);
  }

  function draw() {
    clearTimeout(waiting);
    waiting = 0;
    if (!latest) return;
    const { columns, matches } = latest;
    const found = [...columns.found.values()].filter((c) => !matches || matches[c.state]);
    root.hidden = columns.found.size === 0;
    root.classList.toggle("unmeasured", !times.size);
    const values = new Map(found.map((c) => [c, COLUMNS[by].value(c, columns, times)]));
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const { wrong } = columns;
    const order = (a, b) => compare(wrong.has(a.state), wrong.has(b.state)) || (compare(values.get(a), values.get(b)) || a.seconds - b.seconds || a.state - b.state) * (down ? -1 : 1);
    found.sort(order);
    const groups = new Map();
    for (const c of found) {
      const key = together.checked ? `${c.operators}${wrong.has(c.state) ? " false" : ""}` : c.state;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(c);
    }
    const some = matches ? `${found.length.toLocaleString("en")} of ` : "";
    const kinds = together.checked ? `, ${counted(groups.size, "set")} of calls` : "";
    caption.textContent = `${some}${counted(columns.found.size, "candidate")}${wrong.size ? ` (${wrong.size.toLocaleString("en")} false)` : ""}${kinds}`;
    head.replaceChildren(...COLUMNS.map(({ name }, n) => column(name, n)));
    const rows = [];
    for (const [key, members] of groups) {
      rows.push(row(members[0], members.length, key));
      if (key === open) rows.push(...members.slice(1, ROWS).map((c) => row(c, 0, key)));
      if (rows.length > ROWS) break;
    }
    const left = groups.size - new Set(rows.map((r) => r.dataset.key)).size;
    if (left > 0) rows.push(h("tr", {}, h("td", { colSpan: COLUMNS.length }, `… ${left.toLocaleString("en")} more: filter, or sort by another column`)));
    body.replaceChildren(...rows);
  }

  function column(name, n) {
    const turn = () => {
      down = n === by ? !down : false;
      by = n;
      draw();
    };
    const mark = n === by ? (down ? " ▼" : " ▲") : "";
    return h("th", { scope: "col", data: { column: name }, ariaSort: n === by ? (down ? "descending" : "ascending") : "none" }, h("button", { type: "button", onclick: turn, title: `sort by ${name}` }, name + mark));
  }

  function row(c, members, key) {
    const turn = () => {
      open = open === key ? "" : key;
      draw();
    };
    const more = members > 1 ? h("button", { type: "button", ariaExpanded: String(open === key), title: "candidates with the same calls", onclick: turn }, `${open === key ? "−" : "+"}${members - 1}`) : null;
    const wrong = latest.columns.wrong.get(c.state);
    return h(
      `tr${c.state === latest.selected ? ".ein-current" : ""}${wrong ? ".ein-false" : ""}`,
      { data: { key }, title: wrong?.why },
      h("td", {}, h("button", { type: "button", onclick: () => pick(c.state) }, String(c.state)), " ", more),
      ...COLUMNS.slice(1).map(({ name, value, shown = String }) => h("td", { data: { column: name } }, shown(value(c, latest.columns, times)))),
    );
  }

  return {
    root,
    show,
    /** Take in the *times* that were measured, by state. */
    measured(next) {
      times = next;
      draw();
    },
    destroy: () => clearTimeout(waiting),
  };
}
