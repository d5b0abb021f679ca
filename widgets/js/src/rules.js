// What may be done: legal matches with their gain, a form for parameters, and refusals with their reasons.
import { counted, h, seconds, signed, signedSeconds } from "./dom.js";
import { inline } from "./formula.js";
import { form } from "./form.js";

const REACHES = [
  ["selection", "at selection"],
  ["scope", "and inside"],
  ["everywhere", "everywhere"],
];

export function rulesPanel({ act, bus }) {
  const reach = h("div.ein-reach", { role: "group", ariaLabel: "where to look for rules" });
  const advise = h("button", { type: "button", title: "take the first step to the cheapest candidate of a search of 5 s (n)", data: { do: "advise" }, onclick: () => act({ do: "advise" }) }, "Next good step");
  const clean = h("button", { type: "button", title: "merge scopes, relax and tighten boundaries (t)", data: { do: "clean" }, onclick: () => act({ do: "clean" }) }, "Tidy up");
  const list = h("ul.ein-matches", { ariaLabel: "legal matches" });
  const others = h("ul.ein-matches", { ariaLabel: "legal matches of further rules" });
  const further = h(
    "details.ein-further",
    { ontoggle: () => further.open !== state.open && act({ do: "further", open: further.open }) },
    h("summary", { title: "rules of the library that a search of one expression does not try" }, "further rules"),
    others,
  );
  const why = h("details.ein-refusals", { ontoggle: () => why.open && (body.scrollTop = why.offsetTop) });
  const body = h("div.ein-rules", {}, reach, h("div.ein-reach", {}, advise, clean), list, further, why);
  const heading = h("span.ein-count");
  let state = { matches: [], refusals: [], laws: {} };
  let current = -1;

  const buttons = () => [...list.querySelectorAll("button.ein-match"), ...(further.open ? others.querySelectorAll("button.ein-match") : [])];

  function focus(n) {
    const all = buttons();
    if (!all.length) return;
    current = (n + all.length) % all.length;
    all[current].focus();
  }

  function apply(match) {
    bus.preview(null);
    act({ do: "apply", rule: match.rule, at: match.at, params: match.params });
  }

  function look(n) {
    current = n;
    for (const [k, button] of buttons().entries()) button.classList.toggle("current", k === n);
    const match = state.matches[n];
    bus.preview(match ?? null);
    if (match && match.latex == null) act({ do: "preview", match: n, node: state.node });
  }

  function row(match, n) {
    const parameters = h("div.ein-form");
    const open = () => {
      const there = parameters.firstChild;
      const page = h("button", { type: "button", data: { do: "page" }, onclick: () => act({ do: "page", rule: match.rule }) }, "About this rule");
      parameters.replaceChildren(...(there ? [] : [law(state.laws[match.rule]), page, form(match, (params) => apply({ ...match, params }))].filter(Boolean)));
      parameters.querySelector("input, textarea")?.focus();
    };
    return h(
      "li",
      {},
      h(
        "button.ein-match",
        {
          type: "button",
          data: { rule: match.rule, at: match.at },
          onclick: (event) => event.detail < 2 && apply(match), // a second click was meant for the row that was here
          onpointerenter: () => look(n),
          onfocus: () => look(n),
          onpointerleave: () => bus.preview(null),
          onblur: () => bus.preview(null),
        },
        h("span.ein-rule", {}, match.rule.replaceAll("_", " "), h("span.ein-at", {}, ` at ${match.at}`)),
        h("span.ein-gain", {}, gain("Δd", match.distance, signed(match.distance)), gain("Δt", match.seconds, signedSeconds(match.seconds)), match.best == null ? null : h("span.same", { title: "estimated time of the cheapest candidate that the last search reached through this step" }, `best ${seconds(match.best)}`)),
        h("span.ein-params", {}, match.says),
      ),
      h("button.ein-edit", { type: "button", title: "other parameters", ariaLabel: `other parameters for ${match.rule.replaceAll("_", " ")}`, onclick: open }, "…"),
      parameters,
    );
  }

  function draw(next) {
    const other = next.node !== state.node || next.at !== state.at || next.reach !== state.reach;
    if (other) current = -1;
    state = next;
    current = Math.min(current, next.matches.length - 1);
    const usual = next.matches.filter((match) => !match.further);
    heading.textContent = `${counted(usual.length + (next.more ?? 0), "legal match").replace("matchs", "matches")}`;
    reach.replaceChildren(
      ...REACHES.map(([value, label]) =>
        h("button", { type: "button", ariaPressed: String(next.reach === value), onclick: () => act({ do: "reach", reach: value }) }, label),
      ),
    );
    const grouped = (match, n) => (match.group === next.matches[n - 1]?.group && match.further === next.matches[n - 1]?.further ? [row(match, n)] : [h("li.ein-group", {}, match.group), row(match, n)]);
    list.replaceChildren(...usual.flatMap(grouped));
    others.replaceChildren(...next.matches.slice(usual.length).flatMap((match, n) => grouped(match, n + usual.length)));
    if (next.open && usual.length === next.matches.length) others.append(h("li.ein-faint", {}, "no legal match of a further rule here"));
    further.hidden = !next.further;
    further.open = next.open;
    if (next.more) list.append(h("li.ein-faint", {}, `and ${next.more} more: choose a scope, or “at selection”`));
    if (next.unsaid) list.append(h("li.ein-faint", {}, next.unsaid));
    if (!usual.length) list.append(h("li.ein-faint", {}, next.none || "no legal match here"));
    if (next.others) {
      const everywhere = h("button", { type: "button", onclick: () => act({ do: "reach", reach: "everywhere" }) }, "everywhere");
      list.append(h("li.ein-faint", {}, `${counted(next.others, "other equation")} not listed: `, everywhere));
    }
    why.hidden = !next.refusals.length;
    why.replaceChildren(
      h("summary", {}, `${counted(next.refusals.length, "rule")} refused: why?`),
      h(
        "dl",
        {},
        next.refusals.map((refusal) => [
          h("dt", {}, refusal.rule.replaceAll("_", " "), h("span.ein-at", {}, ` at ${refusal.at}`)),
          h("dd", {}, refusal.why, law(next.laws[refusal.rule])),
        ]),
      ),
    );
    if (other) body.scrollTop = 0;
  }

  return {
    title: "Rules",
    heading,
    body,
    draw,
    /** A preview that was asked for. */
    arrived(match, preview) {
      if (!state.matches[match]) return;
      Object.assign(state.matches[match], preview);
      if (match === current) bus.preview(state.matches[match]);
    },
    key(event) {
      if (event.key === "j") focus(current + 1);
      else if (event.key === "n") act({ do: "advise" });
      else if (event.key === "t") act({ do: "clean" });
      else if (event.key === "k") focus(current < 0 ? -1 : current - 1);
      else if (event.key === "Enter" && state.matches[current] && !event.target.closest?.("button, summary, input, textarea, select, a")) apply(state.matches[current]);
      else return false;
      return true;
    },
  };
}

function law(latex) {
  return latex ? h("div.ein-law", {}, inline(latex)) : null;
}

function gain(name, value, text) {
  const sense = value == null || value === 0 ? "same" : value < 0 ? "better" : "worse";
  const says = { same: "", better: " (better)", worse: " (worse)" }[sense];
  return h(`span.${sense}`, { title: `${name === "Δd" ? "change of the distance (– if no operator is comparable)" : "change of the estimated time"}${says}` }, `${name} ${text}`);
}
