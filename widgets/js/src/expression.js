// The expression: point at a token or click it, walk with the arrows; the last step and a preview in colour.
import { h, seconds } from "./dom.js";
import { all, bounds, formula, frame, ink, mark, walk } from "./formula.js";

export function expressionPanel({ act, bus }) {
  const main = h("div.ein-main", { tabIndex: 0, role: "group", ariaLabel: "expression: arrow keys select its scopes, with Shift the tokens in a scope" });
  const facts = h("div.ein-facts");
  const said = h("div.ein-said", { role: "status" });
  const step = h("details.ein-step");
  const preview = h("div.ein-preview", { ariaLive: "polite" });
  const body = h("div.ein-expression", {}, facts, main, said, step, preview);
  let shown = { paths: [], at: "", token: "", marks: {}, tokens: {} };
  let selected = "";
  let at = "";
  let hovered = "";
  let clicked = "";
  let before = null;

  const told = (name) => (name.startsWith("p") && shown.names?.[name.slice(1)] ? [shown.names[name.slice(1)]] : []).concat(shown.tokens?.[name]?.says ?? []);
  const frames = () => {
    frame(main, all(main, selected), "ein-selected");
    frame(main, all(main, hovered), "ein-hovered");
  };

  /** Select the token *name* in the scope at *path*; a scope's name is `p` and its path. */
  function select(name, path) {
    selected = name;
    at = path;
    frames();
    said.textContent = (name && [path, told(name).join("; ")].filter(Boolean).join(": ")) || "nothing selected";
    main.dataset.at = path;
    main.dataset.token = name;
  }

  function choose(name, path) {
    if (name === selected && path === at) return;
    select(name, path);
    act({ do: "select", at: path, token: name });
  }

  /** The path of the innermost scope around *box*; the name of an equation is its outermost scope's. */
  function around(box) {
    return (box.closest("[data-p]") ?? box.closest(".ein-equation").querySelector("[data-p]")).dataset.p;
  }

  /** The innermost token at a point: KaTeX stacks columns and limits, so the topmost box need not be inside it. */
  function under(event) {
    const boxes = main.getRootNode().elementsFromPoint?.(event.clientX, event.clientY) ?? [event.target];
    const found = [...new Set(boxes.map((box) => box.closest("[data-t]")).filter((box) => box && main.contains(box)))];
    const depth = (box) => (box ? 1 + depth(box.parentElement.closest("[data-t]")) : 0);
    const inside = (r) => r.left - 1 <= event.clientX && event.clientX <= r.right + 1 && r.top - 1 <= event.clientY && event.clientY <= r.bottom + 1;
    const near = (box) => {
      const drawn = ink(box);
      return drawn.some(inside) ? 2 : Number(drawn.length > 0 && inside(bounds(drawn)));
    };
    const ranked = found.map((box) => ({ box, near: near(box), depth: depth(box) }));
    return ranked.sort((a, b) => b.near - a.near || b.depth - a.depth)[0]?.box ?? null;
  }

  function hover(name, event = null) {
    if (name === hovered) return;
    hovered = name;
    frames();
    bus.hover(shown.tokens?.[name] ?? null);
    const box = name && all(main, name).find((each) => event && each.contains(under(event)));
    bus.tip(box ? ink(box) : [], told(name));
  }

  main.addEventListener("click", (event) => {
    const found = under(event);
    if (!found) return;
    // A click on the same token again takes what is around it, up to the scope.
    const way = [found];
    while (!way.at(-1).dataset.p && way.at(-1).parentElement.closest("[data-t]")) way.push(way.at(-1).parentElement.closest("[data-t]"));
    const here = found.dataset.t === clicked ? way.findIndex((box) => box.dataset.t === selected) : -1;
    clicked = found.dataset.t;
    const chosen = way[(here + 1) % way.length];
    choose(chosen.dataset.t, around(chosen));
  });
  main.addEventListener("pointermove", (event) => hover(under(event)?.dataset.t ?? "", event));
  main.addEventListener("pointerleave", () => hover(""));
  main.addEventListener("layout", frames);
  preview.addEventListener("layout", () => {
    const hidden = preview.offsetTop + preview.offsetHeight - body.clientHeight;
    if (hidden > body.scrollTop) body.scrollTop = hidden;
  });

  /** The token that Shift and an arrow key lead to: tokens of the scope in reading order. */
  function token(key) {
    const inside = all(main, `p${at}`).flatMap((part) => [...part.querySelectorAll("[data-t]")]);
    const names = [...new Set(inside.filter((box) => !box.dataset.p && around(box) === at).map((box) => box.dataset.t))];
    const here = names.indexOf(selected);
    if (key === "ArrowUp" || !names.length) return `p${at}`;
    return names[(here + (key === "ArrowLeft" ? (here < 0 ? 0 : -1) : 1) + names.length) % names.length];
  }

  function draw(state) {
    const changed = state.latex !== shown.latex || state.node !== shown.node;
    shown = state;
    if (changed) {
      hover("");
      main.replaceChildren(formula(state));
      step.open = false;
    }
    mark(main, state.marks);
    facts.replaceChildren(
      h("b", { title: "E and the number of steps from the start; # and the number of the node. session.goto takes both" }, `E${state.step} #${state.node}`),
      h("span", { title: "expression distance: mismatched iterators of the nearest target operator; – if no operator is comparable" }, `distance ${state.distance ?? "–"}`),
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
    select(state.token, state.at);
  }

  return {
    title: "Expression",
    body,
    draw,
    /** Show what *match* would give; null takes it away. */
    preview(match) {
      mark(main, match ? { old: match.gone ?? [] } : shown.marks);
      frame(main, match && !match.gone ? all(main, `p${match.at}`) : [], "ein-hovered");
      preview.replaceChildren(
        ...(match?.latex
          ? [
              h("div.ein-label", {}, `preview: ${match.rule.replaceAll("_", " ")} at ${match.at}`, h("span.ein-key.old", {}, "old"), h("span.ein-key.new", {}, "new")),
              formula(match),
            ]
          : []),
      );
      // The panel is as high as it is: what does not fit is scrolled to, and back.
      if (match?.latex) before ??= body.scrollTop;
      else if (before != null) {
        body.scrollTop = before;
        before = null;
      }
    },
    key(event) {
      if (!event.key.startsWith("Arrow") || !body.contains(event.target)) return false;
      const scope = walk(shown.paths, at, event.key);
      if (event.shiftKey) choose(token(event.key), at);
      else choose(scope && `p${scope}`, scope);
      return true;
    },
  };
}

/** How a certificate is said: never by colour alone. */
export function badge(certificate) {
  if (!certificate) return h("span.ein-badge", {}, "not proved yet");
  const signs = { proved: "✓ equal: proved", rounded: "≈ equal: rounded", exact: "≈ equal: exact", unknown: "? unknown", false: "✗ not equal" };
  const sign = signs[certificate.kind];
  return h(`span.ein-badge.${certificate.kind}`, { title: certificate.says }, sign);
}
