// A search: start, pause, stop; its tree, its candidates, and why it did not go some way.
import { candidateTable } from "./candidates.js";
import { counted, h, seconds } from "./dom.js";
import { formula } from "./formula.js";
import { plotsView } from "./plots.js";
import { treeView } from "./tree.js";

/** What ends every candidate, and is no choice: it cannot be forbidden. */
const ALWAYS = "eoperator_generation";

/** Steps, and characters of a formula, that are shown of a state that is pointed at. */
const STEPS = 10;
const HOVERED = 3000;

export function searchPanel({ act }) {
  const tree = treeView({ onselect: pick, onhover: (n) => act({ do: "hover", state: n }) });
  const plots = plotsView({ pick });
  const table = candidateTable({ pick });
  let state = { status: "idle", options: {} };
  let run = null;
  let asked = null;

  const button = (label, title, action, what) => h("button", { type: "button", title, data: what ? { do: what } : {}, onclick: action }, label);
  const start = button("▶ Search", "search from the current program (s)", () => toggle(), "search");
  const stop = button("■ Stop", "end this search and keep its results (Esc)", () => act({ do: "stop" }));
  const progress = h("progress", { max: 1, value: 0, ariaLabel: "progress of the search" });
  const facts = h("span.ein-facts", { role: "status" });
  const colour = h("select", { ariaLabel: "colour of states", onchange: () => tree.colour(colour.value) }, ["distance", "cost", "phase"].map((v) => h("option", { value: v }, `colour: ${v}`)));
  const words = h("input.ein-filter", { type: "search", placeholder: "filter: candidates, operator:matmul m=196, rule:split, cost<20us, depth=2 …", ariaLabel: "filter states", oninput: () => sift() });
  const count = h("span.ein-count", { role: "status" });
  const only = h("input", { type: "checkbox", disabled: true, onchange: () => tree.only(only.checked) });
  const merges = h("input", { type: "checkbox", checked: true, onchange: () => tree.showMerges(merges.checked) });
  const fit = button("Fit", "show the whole tree (f)", () => tree.fit());
  const svg = button("SVG", "save the tree to a file", () => act({ do: "picture" }), "picture");
  const options = h("details.ein-options", { data: { do: "search" } });
  const starts = h("fieldset", { hidden: true });
  const forbidden = h("fieldset", { hidden: true });
  const error = h("p.ein-error", { role: "alert" });
  const detail = h("div.ein-detail", { ariaLive: "polite" });
  const remarks = h("div.ein-remarks", { role: "status" });
  const body = h(
    "div.ein-search",
    {},
    h("div.ein-tools", {}, start, stop, progress, facts),
    options,
    h("div.ein-tools", {}, words, count),
    h("div.ein-tools", {}, colour, h("label", { title: "draw only the ways to the states that the filter finds" }, only, " only the ways to matches"), h("label", { title: "draw the moves that would have reached a known state again" }, merges, " merges"), fit, svg),
    error,
    remarks,
    tree.root,
    plots.root,
    h("div.ein-below", {}, table.root, detail),
  );

  function sift() {
    if (/\bwhy:/.test(words.value) && run != null && asked !== state.pruned) {
      asked = state.pruned;
      act({ do: "why" });
    }
    try {
      tree.filter(words.value);
      words.setCustomValidity("");
      error.textContent = "";
    } catch (problem) {
      words.setCustomValidity(problem.message);
      error.textContent = `filter: ${problem.message}`;
    }
    sifted();
  }

  /** Say how many states the filter finds, and show the candidates among them. */
  function sifted() {
    const { matches, found, columns } = tree;
    count.textContent = matches ? `${found.toLocaleString("en")} of ${counted(columns.count, "state")}` : "";
    only.disabled = !matches;
    table.show(columns, matches, tree.selected);
    plots.show(columns, matches, tree.selected);
  }

  /** The settings: what is left empty is as if nothing had been said.  Null where one is wrong, which is said. */
  function chosen() {
    const form = options.querySelector("form");
    if (!form) return {};
    const wrong = [...form.elements].find((field) => field.validity && !field.validity.valid);
    error.textContent = wrong ? `${wrong.closest("label").firstChild.textContent.trim()}: ${wrong.validationMessage}` : "";
    if (wrong) {
      options.open = true;
      wrong.focus();
      return null;
    }
    const data = new FormData(form);
    const number = (name) => (data.get(name) === "" ? null : Number(data.get(name)));
    return {
      max_depth: number("max_depth"),
      limit: number("limit"),
      strategy: data.get("strategy"),
      patience: number("patience"),
      rules: data.getAll("rules"),
      must_use: data.getAll("must_use"),
      starts: data.getAll("starts"),
    };
  }

  /** Ask for *what*, with the settings if they are right. */
  function begin(what) {
    const settings = chosen();
    if (settings) act({ ...what, ...settings });
  }

  function toggle() {
    if (state.status === "running") act({ do: "pause" });
    else if (state.status === "paused") act({ do: "resume" });
    else begin({ do: "search" });
  }

  function settings(next) {
    const { max_depth, limit, strategy, patience, rules, must_use } = next.options;
    const boxes = (name, chosen) => next.known.filter((rule) => rule !== ALWAYS).map((rule) => h("label", {}, h("input", { type: "checkbox", name, value: rule, checked: chosen.includes(rule) }), rule.replaceAll("_", " ")));
    options.replaceChildren(
      h("summary", {}, "Settings"),
      h(
        "form",
        { onsubmit: (event) => event.preventDefault() },
        h("label", {}, "max depth ", h("input", { name: "max_depth", type: "number", min: 0, max: 99, value: max_depth })),
        h("label", {}, "at most ", h("input", { name: "limit", type: "number", min: 0, step: "any", value: limit }), " s"),
        h("label", {}, "strategy ", h("select", { name: "strategy" }, next.strategies.map((s) => h("option", { value: s, selected: s === strategy }, s)))),
        h("label", { title: "best_first ends after so many levels in which nothing got cheaper" }, "patience ", h("input", { name: "patience", type: "number", min: 0, max: 99, value: patience }), " levels"),
        h(
          "fieldset",
          {},
          h("legend", {}, "rules that the search may use, also in clean-ups (operator matching and eOperator generation are always used)"),
          h("input", { type: "hidden", name: "rules", value: ALWAYS }),
          boxes("rules", rules),
        ),
        h("fieldset", {}, h("legend", {}, "rules that every candidate must use"), boxes("must_use", must_use)),
        starts,
        forbidden,
      ),
    );
  }

  /** The pins to start from, and the edges that are forbidden: they change without a new search. */
  function steering({ pins = [], forbidden: edges = [] }) {
    const chosen = new Set([...starts.querySelectorAll("input:checked")].map((box) => box.value));
    starts.hidden = !pins.length;
    starts.replaceChildren(h("legend", {}, "start from these pins (none: from the current program)"), ...pins.map((name) => h("label", {}, h("input", { type: "checkbox", name: "starts", value: name, checked: chosen.has(name) }), name)));
    forbidden.hidden = !edges.length;
    forbidden.replaceChildren(h("legend", {}, "edges that the next search does not follow"), ...edges.map((says, edge) => h("span", {}, `${says} `, h("button", { type: "button", title: "allow this edge again", ariaLabel: `allow ${says}`, data: { do: "allow" }, onclick: () => act({ do: "allow", edge }) }, "×"))));
  }

  function draw(next) {
    const before = state;
    state = next;
    if (next.run !== run) {
      run = next.run;
      asked = null;
      tree.clear();
      sifted();
      detail.replaceChildren();
      if (run != null) act({ do: "tree", run, since: 0 });
    }
    const running = next.status === "running" || next.status === "stopping";
    start.textContent = running ? "❚❚ Pause" : next.status === "paused" ? "▶ Resume" : "▶ Search";
    stop.disabled = next.status !== "running" && next.status !== "paused";
    start.disabled = next.status === "stopping";
    progress.value = next.progress;
    progress.hidden = next.status === "idle";
    const parts = next.run == null ? [] : [next.ending && !running ? `${next.status} (${next.ending})` : next.status, counted(next.states, "state") + (next.inside ? ` and ${next.inside.toLocaleString("en")} of single expressions` : ""), `${next.pruned.toLocaleString("en")} pruned`, counted(next.candidates, "candidate"), `${next.spent.toFixed(1)} s`];
    if (next.best != null) parts.push(`best ${seconds(next.best)}`);
    svg.disabled = next.run == null;
    facts.textContent = parts.join(" · ");
    if (JSON.stringify(before.remarks) !== JSON.stringify(next.remarks)) remarks.replaceChildren(...(next.remarks ?? []).map(remark));
    if (next.error !== before.error) error.textContent = next.error ?? "";
    if (JSON.stringify(before.options) !== JSON.stringify(next.options)) settings(next);
    if (JSON.stringify([before.pins, before.forbidden]) !== JSON.stringify([next.pins, next.forbidden])) steering(next);
    tree.best(next.top ?? -1);
    if (tree.refute(next.false ?? [])) sifted();
    about(next.detail);
  }

  /** What a reader of the results must know, with a button for the step that helps. */
  function remark({ says, step }) {
    return h("p", {}, says, step ? [" ", button(`Apply ${step.rule.replaceAll("_", " ")}`, "apply this step to the current program", () => act({ do: "apply", ...step }))] : null);
  }

  function pick(n) {
    tree.select(n);
    sifted();
    act({ do: "state", state: n });
  }

  function about(shown) {
    if (!shown) return detail.replaceChildren();
    tree.select(shown.state);
    const parts = [
      h(
        "div.ein-tools",
        {},
        h("b", {}, `state ${shown.state}`),
        h("span", {}, `depth ${shown.depth} · distance ${shown.distance ?? "–"}${shown.seconds == null ? "" : ` · ${seconds(shown.seconds)}`}`),
        button("Go here", "add its steps to the derivation and go to its end", () => act({ do: "take", state: shown.state }), "take"),
        button("Pin", "add its steps as a branch of the derivation, without going there", () => act({ do: "pin", state: shown.state }), "pin"),
        button("Search from here", "go there and start a search from it", () => begin({ do: "steer", state: shown.state }), "steer"),
        shown.state ? button("Forbid this edge", "the next search does not go from its parent to this state", () => act({ do: "forbid", state: shown.state }), "forbid") : null,
      ),
      shown.false ? h("p.ein-error", {}, `not equal to the start: ${shown.false}`) : null,
      formula(shown),
      h("ol.ein-way", {}, shown.steps.map((s) => h("li", {}, s))),
      ...(shown.why.length ? [h("details", { open: shown.why.length < 4 }, h("summary", {}, `${counted(shown.why.length, "move")} not followed: why?`), h("ul", {}, shown.why.map((w) => h("li", {}, w))))] : []),
    ];
    detail.replaceChildren(...parts.filter(Boolean));
  }

  return {
    title: "Search",
    body,
    draw,
    tree,
    /** What the state that is pointed at is. */
    hovered(shown) {
      const { steps } = shown;
      const some = steps.slice(0, STEPS).map((step) => h("li", {}, step));
      tree.tell(shown.state, shown.latex.length <= HOVERED ? formula(shown) : h("pre", {}, shown.text.slice(0, HOVERED)), h("ol", {}, some), steps.length > STEPS ? h("p", {}, `… ${counted(steps.length - STEPS, "more step")}`) : null);
    },
    /** Why moves were not followed. */
    explained(message, buffer) {
      if (message.run !== run) return;
      tree.explain(message.texts, buffer);
      sift();
    },
    /** States that have come. */
    arrived(header, buffer) {
      if (header.run !== run) return;
      if (tree.append(header, buffer)) sifted();
      else act({ do: "tree", run, since: tree.columns.count });
    },
    key(event) {
      if (event.key === "s") toggle();
      else if (event.key === "Escape") act({ do: "stop" });
      else if (event.key === "f") tree.fit();
      else if (event.key === "/") words.focus();
      else if (tree.root.contains(event.target)) return tree.key(event);
      else return false;
      return true;
    },
    /** The measured programs: times and errors of states. */
    measured(rows) {
      const states = rows.flatMap((row) => (row.key.startsWith("state ") && row.measured ? [{ ...row, state: Number(row.key.slice(6)) }] : []));
      plots.measured(states);
      table.measured(new Map(states.map(({ state: n, measured }) => [n, measured])));
    },
    destroy: () => {
      tree.destroy();
      table.destroy();
      plots.destroy();
    },
  };
}
