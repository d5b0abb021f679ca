// The expression: click a scope or walk with the arrows; the last step and a preview in colour.
import { h, seconds } from "./dom.js";
import { at, formula, frame, mark, walk } from "./formula.js";

export function expressionPanel({ act }) {
  const main = h("div.ein-main", { tabIndex: 0, role: "group", ariaLabel: "expression: arrow keys select its scopes" });
  const facts = h("div.ein-facts");
  const said = h("div.ein-said", { role: "status" });
  const step = h("details.ein-step");
  const preview = h("div.ein-preview", { ariaLive: "polite" });
  const body = h("div.ein-expression", {}, facts, main, said, step, preview);
  let shown = { paths: [], at: "", marks: {} };
  let selected = "";
  let hovered = null;
  let before = null;

  function select(path) {
    selected = path;
    const found = at(main, path);
    frame(main, found, "ein-selected");
    said.textContent = path ? `${path}: ${shown.names?.[path] ?? "no scope"}` : "nothing selected";
    main.dataset.at = path;
  }

  function choose(path) {
    if (path === selected) return;
    select(path);
    act({ do: "select", at: path });
  }

  /** The innermost scope under the pointer: KaTeX stacks columns and limits, so the topmost box need not be inside it. */
  function under(event) {
    const boxes = main.getRootNode().elementsFromPoint?.(event.clientX, event.clientY) ?? [event.target];
    const found = boxes.map((box) => box.closest("[data-p]")).filter((box) => box && main.contains(box));
    return found.sort((a, b) => b.dataset.p.length - a.dataset.p.length)[0] ?? null;
  }

  main.addEventListener("click", (event) => {
    const found = under(event);
    if (found) choose(found.dataset.p);
  });
  main.addEventListener("pointermove", (event) => {
    const found = under(event);
    if (found === hovered) return;
    hovered = found;
    frame(main, hovered, "ein-hovered");
  });
  main.addEventListener("pointerleave", () => {
    hovered = null;
    frame(main, null, "ein-hovered");
  });
  // Fonts that arrive and columns that change their width move what is framed.
  const observer = new ResizeObserver(() => frame(main, at(main, selected), "ein-selected"));
  observer.observe(main);
  document.fonts?.ready.then(() => frame(main, at(main, selected), "ein-selected"));

  function draw(state) {
    const changed = state.latex !== shown.latex || state.node !== shown.node;
    shown = state;
    if (changed) {
      main.replaceChildren(formula(state));
      step.open = false;
    }
    mark(main, state.marks);
    facts.replaceChildren(
      h("b", {}, `E${state.step}`),
      h("span", { title: "expression distance: mismatched iterators of the nearest target operator" }, `distance ${state.distance ?? "?"}`),
      h("span", { title: "time estimated by the roofline model" }, seconds(state.seconds)),
      ...(state.step ? [badge(state.certificate)] : []),
    );
    step.hidden = !state.before;
    if (state.before && changed) {
      step.replaceChildren(
        h("summary", {}, `${state.before.rule.replaceAll("_", " ")} at ${state.before.at}`),
        h("div.ein-label.old", {}, "before"),
        formula(state.before),
        h("div.ein-label.new", {}, "after"),
        formula(state),
      );
    }
    select(state.at);
  }

  return {
    title: "Expression",
    body,
    draw,
    /** Show what *match* would give; null takes it away. */
    preview(match) {
      mark(main, match ? { [match.at]: "old" } : shown.marks);
      preview.replaceChildren(
        ...(match?.latex
          ? [
              h("div.ein-label", {}, `preview: ${match.rule.replaceAll("_", " ")} at ${match.at}`, h("span.ein-key.old", {}, "old"), h("span.ein-key.new", {}, "new")),
              formula(match),
            ]
          : []),
      );
      // The panel is as high as it is: what does not fit is scrolled to, and back.
      if (match?.latex) {
        before ??= body.scrollTop;
        const hidden = preview.offsetTop + preview.offsetHeight - body.clientHeight;
        if (hidden > body.scrollTop) body.scrollTop = hidden;
      } else if (before != null) {
        body.scrollTop = before;
        before = null;
      }
    },
    key(event) {
      if (!event.key.startsWith("Arrow") || !body.contains(event.target)) return false;
      choose(walk(shown.paths, selected, event.key));
      return true;
    },
    destroy: () => observer.disconnect(),
  };
}

/** How a certificate is said: never by colour alone. */
export function badge(certificate) {
  if (!certificate) return h("span.ein-badge", {}, "not proved yet");
  const signs = { proved: "✓ equal: proved", rounded: "≈ equal: rounded", exact: "≈ equal: exact", unknown: "? unknown", false: "✗ not equal" };
  const sign = signs[certificate.kind];
  return h(`span.ein-badge.${certificate.kind}`, { title: certificate.says }, sign);
}
