// A lesson: two programs, a button a rule, hints, and the answer to every guess with its reason.
import { h } from "./dom.js";
import { formula } from "./formula.js";

const SIGNS = { right: "✓ right", wrong: "✗ wrong", shown: "→ shown" };

export function quizPanel({ act }) {
  const goal = h("p.ein-goal");
  const asked = h("h4");
  const programs = h("div.ein-asked");
  const choices = h("div.ein-choices", { role: "group", ariaLabel: "rules to guess from" });
  const hint = h("button", { type: "button", title: "show the next hint", onclick: () => act({ do: "hint" }) }, "Hint");
  const reveal = h("button", { type: "button", title: "show the answer without a guess", onclick: () => act({ do: "reveal" }) }, "Show me");
  const tools = h("div.ein-tools", {}, hint, reveal);
  const hints = h("ul.ein-hints", { ariaLive: "polite" });
  const answers = h("ul.ein-answers", { ariaLive: "polite" });
  const score = h("div.ein-scroll");
  const body = h("div.ein-quiz", {}, goal, asked, programs, choices, tools, hints, answers, score);

  function draw(state) {
    goal.textContent = state.goal;
    goal.hidden = !state.goal;
    asked.textContent = state.over ? `All ${state.of} steps are answered` : `Step ${state.number} of ${state.of}: which rule is it?`;
    for (const part of [programs, choices, tools]) part.hidden = state.over;
    const tried = new Set(state.answers.filter((a) => a.question === state.number).map((a) => a.rule));
    if (!state.over) {
      programs.replaceChildren(h("div.ein-label", {}, "before"), formula(state.before), h("div.ein-label.new", {}, "after (new parts in colour)"), formula(state.after));
      choices.replaceChildren(
        ...state.choices.map((rule) =>
          h("button", { type: "button", data: { rule }, disabled: tried.has(rule), onclick: () => act({ do: "guess", rule }) }, rule.replaceAll("_", " ")),
        ),
      );
    }
    hints.replaceChildren(...state.hints.map((said) => h("li", {}, said.startsWith("its law: ") ? ["its law: ", formula({ latex: said.slice(9), text: said.slice(9) })] : said)));
    answers.replaceChildren(
      ...[...state.answers].reverse().map((a) => h("li", {}, h(`b.ein-verdict.${a.verdict}`, {}, `${SIGNS[a.verdict]} (step ${a.question}): `), a.why)),
    );
    score.replaceChildren(...(state.score.rows.length ? [table(state.score)] : []));
  }

  return { title: "Guess the rule", body, draw };
}

function table({ head, rows, caption }) {
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))),
  );
}
