import { beforeAll, describe, expect, it, spy } from "./check.js";

class Model {
  constructor(state) {
    this.state = state;
    this.listeners = {};
    this.send = spy();
  }
  get(name) {
    return this.state[name];
  }
  set(name, value) {
    this.state[name] = value;
    this.emit(`change:${name}`);
  }
  on(event, listener) {
    (this.listeners[event] ??= []).push(listener);
  }
  off(event, listener) {
    this.listeners[event] = this.listeners[event].filter((each) => each !== listener);
  }
  emit(event, ...values) {
    for (const listener of this.listeners[event] ?? []) listener(...values);
  }
}

const token = (name, shown) => `\x04${name}\x05${shown}\x06`;
const MATCH = { rule: "summation_splitting", at: "0", params: { outer: ["c"] }, says: "outer = c", distance: -1, seconds: 1e-6, latex: "y", marks: {}, gone: [1] };
const STATE = {
  panels: ["history", "expression", "rules"],
  label: "explorer",
  head: { title: "Y", targets: ["", "Matmul"], target: "", undo: true, redo: false },
  notice: {},
  expression: { latex: `${token("t0", "Y")} = ${token("p0", `${token("", "L")} ${token("p0.0", `${token("x0.0_0", "x")}\\,z`)}`)}`, node: 0, step: 0, at: "0", token: "p0", tokens: { "x0.0_0": { says: ["x: traversal", "0 ≤ x < 4"], at: "0.0", node: "Y", names: ["x"] } }, paths: ["0", "0.0"], names: {}, distance: 1, seconds: 1, marks: {}, before: null, certificate: null },
  rules: { node: 0, at: "0", reach: "scope", matches: [MATCH, { ...MATCH, params: { outer: ["r"] }, latex: null }], refusals: [{ rule: "traversal_merging", at: "0", why: "<b>no</b> scope" }], laws: {} },
  history: { here: 0, nodes: [{ id: 0, parent: -1, branch: 0, step: 0, way: true, rule: "", at: "", says: "" }], compare: null },
};

let face;
beforeAll(async () => {
  face = (await import("../src/main.js")).default;
});

function shown(state = {}) {
  const model = new Model({ ...structuredClone(STATE), ...state });
  const el = document.createElement("div");
  document.body.replaceChildren(el);
  const leave = face.render({ model, el });
  const key = (name, target = el.querySelector(".ein")) => {
    const event = new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true });
    target.dispatchEvent(event);
    return event;
  };
  return { model, el, leave, key };
}

/** A click where *element* is: scopes are found by the boxes at a point. */
function click(element) {
  element.scrollIntoView({ block: "nearest" });
  const box = element.getBoundingClientRect();
  element.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 }));
}

const QUIZ = {
  panels: ["quiz"],
  notice: {},
  quiz: {
    goal: "one product", number: 2, of: 3, over: false, choices: ["summation_splitting", "traversal_merging"], hints: ["its law: x = y"],
    before: { latex: "x", text: "x", marks: {} }, after: { latex: `${token("t0", "Y")} = ${token("p0", token("", "y"))}`, text: "y", marks: { new: [1] } },
    answers: [{ question: 1, rule: "traversal_merging", verdict: "right", why: "for a < b" }, { question: 2, rule: "traversal_merging", verdict: "wrong", why: "no scope" }],
    score: { head: ["step"], rows: [["1"]], caption: "1 of 3" },
  },
};

describe("a quiz", () => {
  it("has a button a rule, and answers guesses with words", () => {
    const { model, el } = shown(QUIZ);
    const buttons = [...el.querySelectorAll(".ein-choices button")];
    expect(buttons.map((b) => b.disabled)).toEqual([false, true]); // the second was tried at this step
    buttons[0].click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "guess", rule: "summation_splitting" });
    for (const [label, asked] of [["Hint", "hint"], ["Show me", "reveal"]]) {
      [...el.querySelectorAll("button")].find((b) => b.textContent === label).click();
      expect(model.send).toHaveBeenLastCalledWith({ do: asked });
    }
    expect(el.querySelector(".ein-asked [data-mark=new]").textContent).toContain("y");
    expect([...el.querySelectorAll(".ein-verdict")].map((b) => b.textContent)).toEqual(["✗ wrong (step 2): ", "✓ right (step 1): "]);
    expect(el.querySelector(".ein-answers").textContent).toContain("for a < b");
    expect(el.querySelector(".ein-hints .katex") === null).toBe(false);
    model.set("quiz", { ...QUIZ.quiz, over: true, number: 4, before: null, after: null });
    expect(el.querySelector(".ein-choices").hidden).toBe(true);
  });
});

const ROW = { key: "start", label: "original", suggested: true, estimated: 1e-6, measured: null, iqr: null, speedup: null, error: null, failed: null, how: null, roof: null };
const ENGINE = { ...ROW, key: "openvino", label: "openvino", estimated: null, engine: true };
const BENCH = {
  rows: [ROW, { ...ROW, key: "state 3", measured: 2e-6, iqr: 1e-7, speedup: 2, error: 1e-7, roof: { part: 0.5, bound: "flops", flops: 2e9, flops_part: 0.5, bytes: 3e8, bytes_part: 0.1 } }, ENGINE, { ...ENGINE, key: "ncnn", label: "ncnn", missing: "not installed: pip install ncnn" }],
  running: false, progress: 0, says: "", caption: "", csv: "", svg: "", device: "cpu", note: "There is no CUDA GPU",
  devices: [{ name: "cpu", says: "this CPU", missing: "" }, { name: "cuda", says: "a CUDA GPU", missing: "a driver" }, { name: "profile:", says: "a profile", missing: "" }],
};

describe("a benchmark", () => {
  it("offers the devices that are there, and asks for the chosen programs on the chosen one", () => {
    const { model, el } = shown({ panels: ["bench"], notice: {}, bench: BENCH });
    const menu = el.querySelector("select[aria-label=device]");
    expect([...menu.options].map((o) => o.disabled)).toEqual([false, true, false]);
    expect(el.querySelector(".ein-bench p").textContent).toBe("There is no CUDA GPU");
    const measure = [...el.querySelectorAll("button")].find((b) => b.textContent === "Measure");
    measure.click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "bench", keys: ["start", "state 3", "openvino"], rounds: 15, device: "cpu" });
    menu.value = "profile:";
    menu.dispatchEvent(new Event("change"));
    el.querySelector("input[aria-label='file of the profile']").value = " h100.sqlite ";
    const boxes = [...el.querySelectorAll("tbody input")];
    expect(boxes.map((box) => [box.checked, box.disabled])).toEqual([[true, true], [true, false], [false, true]]); // all are compared with the original; engines run on the CPU
    boxes[1].click();
    measure.click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "bench", keys: ["start"], rounds: 15, device: "profile:h100.sqlite" });
    expect(el.querySelectorAll("tbody tr")[1].textContent).toContain("50 % (flops)");
  });
});

const SEARCH = {
  run: null, status: "idle", options: { max_depth: 7, limit: 60, strategy: "best_first", patience: 2, rules: ["summation_splitting"], must_use: [] }, strategies: ["best_first", "paper"],
  known: ["summation_splitting", "eoperator_generation"], states: 0, pruned: 0, candidates: 0, spent: 0, progress: 0, best: null, top: [], detail: null, error: "",
};

describe("a search", () => {
  it("is begun with what the settings say, with nothing where they are empty, and not with what is wrong", () => {
    const { model, el } = shown({ panels: ["search"], notice: {}, search: SEARCH });
    const begin = [...el.querySelectorAll("button")].find((b) => b.textContent === "▶ Search");
    const [depth, limit] = ["max_depth", "limit"].map((name) => el.querySelector(`input[name=${name}]`));
    const rules = ["eoperator_generation", "summation_splitting"];
    const asked = { do: "search", strategy: "best_first", patience: 2, rules, must_use: [], starts: [] };
    limit.value = "";
    begin.click();
    expect(model.send).toHaveBeenLastCalledWith({ ...asked, max_depth: 7, limit: null });
    limit.value = "0.5";
    depth.value = "1.5";
    begin.click();
    expect(model.send).toHaveBeenCalledTimes(1);
    expect(el.querySelector(".ein-options").open).toBe(true);
    expect(document.activeElement).toBe(depth);
    expect(el.querySelector(".ein-error").textContent).toContain("max depth: ");
    model.set("search", { ...SEARCH, states: 1 });
    expect(el.querySelector(".ein-error").textContent).toContain("max depth: "); // what the search says next does not wipe it away
    depth.value = "2";
    begin.click();
    expect(model.send).toHaveBeenLastCalledWith({ ...asked, max_depth: 2, limit: 0.5 });
    expect(el.querySelector(".ein-error").textContent).toBe("");
  });

  it("is steered by pins, rules that must be used, and forbidden edges", () => {
    const { model, el } = shown({ panels: ["search"], notice: {}, search: { ...SEARCH, pins: ["left", "right"], forbidden: ["a split", "a merge"] } });
    el.querySelector("input[name=starts][value=right]").click();
    model.set("search", { ...SEARCH, pins: ["left", "right", "new"], forbidden: ["a split"] });
    expect(el.querySelectorAll("input[name=starts]").length).toBe(3);
    el.querySelector("input[name=must_use]").click();
    [...el.querySelectorAll("button")].find((b) => b.textContent === "▶ Search").click();
    const { must_use, starts } = model.send.calls.at(-1)[0];
    expect([must_use, starts]).toEqual([["summation_splitting"], ["right"]]);
    el.querySelector("button[aria-label='allow a split']").click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "allow", edge: 0 });
    model.set("search", { ...SEARCH, pins: [], forbidden: [] });
    expect([...el.querySelectorAll("fieldset")].filter((set) => set.hidden).length).toBe(2);
  });
});

describe("the derivation", () => {
  const node = (id, more = {}) => ({ id, parent: id - 1, branch: 0, step: id, way: true, rule: id ? "traversal_merging" : "", at: "", says: "", pins: [], note: "", claimed: false, ...more });

  it("names and annotates the current node, and shows what only a file says", () => {
    const { model, el } = shown({ panels: ["history"] });
    model.set("history", { here: 1, nodes: [node(0), node(1, { pins: ["left"], note: "<b>two</b>", certificate: "proved", claimed: true })], compare: null });
    expect(el.querySelector(".ein-note").textContent).toBe("<b>two</b>");
    expect(el.querySelector(".ein-sign.claimed").title).toContain("says the file");
    el.querySelector("button[aria-label='remove the pin left']").click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "unpin", name: "left" });
    el.querySelector("input[aria-label='name of the pin']").value = "right";
    const [pin, note] = el.querySelectorAll(".ein-annotate form");
    pin.requestSubmit();
    expect(model.send).toHaveBeenLastCalledWith({ do: "pin_node", node: 1, name: "right" });
    expect(el.querySelector("textarea").value).toBe("<b>two</b>");
    el.querySelector("textarea").value = "three";
    note.requestSubmit();
    expect(model.send).toHaveBeenLastCalledWith({ do: "note", node: 1, text: "three" });
    model.set("notice", { text: "opened", kind: "", code: "", action: { label: "Back", do: "reload" } });
    [...el.querySelectorAll(".ein-notice button")].find((b) => b.textContent === "Back").click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "reload" });
  });
});

describe("plots", () => {
  it("show what has data, and select states", async () => {
    const { plotsView } = await import("../src/plots.js");
    const picked = [];
    const plots = plotsView({ pick: (n) => picked.push(n) });
    document.body.replaceChildren(plots.root);
    const one = (state, seconds, found, steps) => [state, { state, operators: "Matmul()", seconds, found, steps }];
    const columns = { found: new Map([one(3, 3e-3, 0.1, 2), one(5, 1e-3, 0.5, 7), one(8, 2e-3, 0.6, 4), one(9, 1e-4, 0, 1)]), wrong: new Map([[9, {}]]) };
    plots.show(columns, null, 5);
    plots.root.open = true;
    plots.show(columns, Uint8Array.from([0, 0, 0, 1, 0, 1, 0, 0, 0]), 5);
    plots.measured([]);
    const names = () => [...plots.root.querySelectorAll("figcaption")].map((c) => c.textContent);
    expect(names()).toEqual(["best over time: estimated time", "cost by steps: estimated time"]);
    const kinds = () => [...plots.root.querySelector("figure").querySelectorAll("circle")].map((c) => `${c.dataset.state} ${c.getAttribute("class")}`.trim());
    expect(kinds()).toEqual(["3 best", "5 best chosen"]); // the chosen one above the others
    plots.root.querySelector("circle[data-state='3']").dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const other = plots.root.querySelector(".dots.off");
    const box = other.getBoundingClientRect();
    other.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.x, clientY: box.y }));
    expect(picked).toEqual([3, 8]);
    plots.measured([{ state: 3, measured: 1e-3, error: 1e-7 }, { state: 5, measured: 2e-3, error: 0 }]);
    expect(names().length).toBe(3);
    plots.destroy();
  });
});

describe("the face", () => {
  it("sends one message a click", () => {
    const { model, el } = shown();
    el.querySelectorAll(".ein-match")[0].click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "apply", rule: "summation_splitting", at: "0", params: { outer: ["c"] } });
    click([...el.querySelectorAll('.ein-main [data-p="0.0"] .mord')].at(-1));
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0", token: "p0.0" });
    [...el.querySelectorAll("button")].find((b) => b.textContent.includes("Undo")).click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "undo" });
    expect(model.send).toHaveBeenCalledTimes(3);
  });

  it("asks for the matches of further rules when they are unfolded", async () => {
    const { model, el, key } = shown({ rules: { ...structuredClone(STATE.rules), further: 5, open: false } });
    const fold = el.querySelector(".ein-further");
    fold.open = true;
    for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame);
    expect(model.send).toHaveBeenLastCalledWith({ do: "further", open: true });
    const other = { ...MATCH, rule: "contraction_order", further: true };
    model.set("rules", { ...structuredClone(STATE.rules), further: 5, open: true, matches: [MATCH, other] });
    expect(fold.textContent).toContain("contraction order");
    expect(el.querySelector(".ein-rules > ul").textContent.includes("contraction")).toBe(false);
    key("j");
    key("j", document.activeElement);
    expect(document.activeElement).toBe(fold.querySelector(".ein-match"));
    for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame);
    expect(model.send).toHaveBeenCalledTimes(1);
  });

  it("works by keys, and keeps those from the notebook", () => {
    const { model, el, key } = shown();
    let leaked = 0;
    document.body.addEventListener("keydown", () => leaked++);
    key("j");
    expect(document.activeElement).toBe(el.querySelectorAll(".ein-match")[0]);
    key("j", document.activeElement);
    expect(document.activeElement).toBe(el.querySelectorAll(".ein-match")[1]);
    expect(model.send).toHaveBeenLastCalledWith({ do: "preview", match: 1, node: 0 });
    key("ArrowDown", el.querySelector(".ein-main"));
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0", token: "p0.0" });
    for (const [name, asked] of [["u", "undo"], ["r", "redo"], ["e", "export"]]) {
      key(name);
      expect(model.send).toHaveBeenLastCalledWith({ do: asked });
    }
    expect(leaked).toBe(0);
    expect(key("x").defaultPrevented).toBe(false);
    expect(leaked).toBe(1);
    expect(el.querySelectorAll(".ein-match")[1].hasAttribute("data-lm-suppress-shortcuts")).toBe(true);
  });

  it("keeps the focus when what had it is drawn anew", () => {
    const { model, el, key } = shown();
    key("j");
    model.set("rules", { ...structuredClone(STATE.rules), node: 1 });
    expect(document.activeElement).toBe(el.querySelector(".ein"));
    key("j", document.activeElement);
    expect(document.activeElement).toBe(el.querySelectorAll(".ein-match")[0]);
  });

  it("takes a double click for one step", () => {
    const { model, el } = shown();
    for (const detail of [1, 2]) el.querySelector(".ein-match").dispatchEvent(new MouseEvent("click", { bubbles: true, detail }));
    expect(model.send).toHaveBeenCalledTimes(1);
  });

  it("says so when the kernel is gone", () => {
    const { model, el } = shown();
    model.send = () => {
      throw new Error("Cannot send");
    };
    el.querySelector(".ein-match").click();
    expect(el.querySelector(".ein-notice.error").textContent).toContain("run the cell again");
  });

  it("follows the session in its own panels, and leaves the page where it is", () => {
    const { model, el } = shown();
    const style = document.createElement("style");
    style.textContent = ".ein-history { height: 60px; overflow: auto; }";
    const below = document.createElement("div");
    below.style.height = "9000px";
    el.append(style, below);
    const nodes = [...Array(20).keys()].map((id) => ({ id, parent: id - 1, branch: 0, step: id, way: true, rule: id ? "traversal_merging" : "", at: "", says: "" }));
    window.scrollTo(0, 5000);
    model.set("history", { here: 19, nodes, compare: null });
    expect(window.scrollY).toBe(5000);
    const panel = el.querySelector(".ein-history");
    const seen = (box) => box.getBoundingClientRect().top < panel.getBoundingClientRect().bottom;
    expect(seen(el.querySelector(".here"))).toBe(true);
    model.set("history", { here: 0, nodes, compare: { a: { id: 0 }, b: { id: 1 }, same: true, certificate: { kind: "proved", says: "" } } });
    expect(seen(el.querySelector(".ein-compared"))).toBe(true);
    expect(window.scrollY).toBe(5000);
    window.scrollTo(0, 0);
  });

  it("shows a preview on hover, and one that had to be asked for", () => {
    const { model, el } = shown();
    el.querySelectorAll(".ein-match")[0].dispatchEvent(new Event("pointerenter"));
    expect(el.querySelector(".ein-preview .katex")).not.toBe(null);
    expect(el.querySelector(".ein-main [data-mark=old]").textContent).toBe("L");
    el.querySelectorAll(".ein-match")[1].dispatchEvent(new Event("pointerenter"));
    expect(el.querySelector(".ein-preview .katex")).toBe(null);
    model.emit("msg:custom", { do: "preview", match: 1, shown: { latex: "z", text: "z", marks: {} } }, []);
    expect(el.querySelector(".ein-preview .katex")).not.toBe(null);
  });

  it("says what a token is, shows where it is, and selects it, then what is around it", () => {
    const { model, el, key } = shown({ panels: ["expression", "rules", "graph"], graph: { svg: "<svg viewBox='0 0 9 9'><g class='node'><title>Y</title><rect/></g></svg>", says: "", paths: { Y: "0" }, at: "", kinds: [], folded: [], layers: 0, values: {} } });
    const x = el.querySelector('.ein-main [data-t="x0.0_0"]');
    const box = x.getBoundingClientRect();
    x.dispatchEvent(new MouseEvent("pointermove", { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 }));
    expect(el.querySelector(".ein-token").textContent).toBe("x: traversal0 ≤ x < 4");
    expect(el.querySelectorAll(".ein-main .ein-hovered").length).toBe(1);
    expect(el.querySelector("g.node").classList.contains("ein-pointed")).toBe(true);
    el.querySelector(".ein-main").dispatchEvent(new Event("pointerleave"));
    expect(el.querySelector(".ein-token").hidden).toBe(true);
    click(x);
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0", token: "x0.0_0" });
    expect(el.querySelector(".ein-said").textContent).toBe("0.0: x: traversal; 0 ≤ x < 4");
    click(x);
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0", token: "p0.0" });
    const arrow = new KeyboardEvent("keydown", { key: "ArrowRight", shiftKey: true, bubbles: true, cancelable: true });
    el.querySelector(".ein-main").dispatchEvent(arrow);
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0", token: "x0.0_0" });
    key("ArrowUp", el.querySelector(".ein-main"));
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0", token: "p0" });
  });

  it("squeezes no panel, shares the width of a row, and remembers the columns that the reader sets", () => {
    localStorage.removeItem("einnet-columns");
    const { el, key } = shown();
    const widths = () => ["history", "expression", "rules"].map((name) => Math.round(el.querySelector(`[data-panel=${name}]`).getBoundingClientRect().width));
    for (const wide of [500, 700, 780, 1440, 1920, 2560]) {
      el.style.width = `${wide}px`;
      expect([wide, Math.min(...widths()) >= 150, el.querySelector(".ein").scrollWidth <= wide]).toEqual([wide, true, true]);
    }
    el.style.width = "1440px";
    const [before] = widths();
    const separator = el.querySelector(".ein-separator.left");
    key("ArrowRight", separator);
    key("ArrowRight", separator);
    const [after] = widths();
    expect(after > before + 40).toBe(true);
    for (let n = 0; n < 60; n++) key("ArrowRight", separator);
    expect(widths()[1] >= 250 && widths()[2] >= 220).toBe(true);
    const again = shown();
    again.el.style.width = "1440px";
    expect(again.el.querySelector("[data-panel=history]").getBoundingClientRect().width > after).toBe(true);
    localStorage.removeItem("einnet-columns");
    const row = document.createElement("div");
    row.style.cssText = "display:flex;width:1600px";
    row.append(el, again.el);
    for (const each of [el, again.el]) each.style.width = "";
    document.body.replaceChildren(row);
    expect([el, again.el].map((each) => each.clientWidth)).toEqual([800, 800]);
  });

  it("shows chosen nodes side by side, and nothing while none are chosen", () => {
    const side = (id, more) => ({ id, name: `node ${id}`, latex: STATE.expression.latex, text: "x", marks: { new: [1] }, svg: "<svg></svg>", distance: id, seconds: 1e-6, measured: null, numerics: "exact", calls: "none", same: false, certificate: null, steps: [], follows: true, ...more });
    const { model, el } = shown({ panels: ["history", "expression", "compare"], compare: { sides: [] } });
    const panel = el.querySelector("[data-panel=compare]");
    expect(panel.hidden).toBe(true);
    model.set("compare", { sides: [side(0), side(2, { certificate: { kind: "proved", says: "" }, steps: ["a step <b>"], follows: false })] });
    expect(panel.hidden).toBe(false);
    expect([...panel.querySelectorAll("thead th")].map((th) => th.textContent)).toEqual(["node 0", "node 2"]);
    expect(panel.querySelector(".ein-badge.proved").textContent).toBe("✓ equal: proved");
    expect([...panel.querySelectorAll(".ein-side [data-mark=new]")].map((leaf) => leaf.textContent)).toEqual(["L", "L"]);
    expect(panel.querySelector("li").textContent).toBe("a step <b>");
    const [connect] = [...panel.querySelectorAll("button")];
    connect.click();
    expect([connect.textContent, model.send.calls.at(-1)[0]]).toEqual(["Find steps from node 0", { do: "connect", a: 0, b: 2 }]);
    model.emit("msg:custom", { do: "kernels", node: 2, kernels: [{ text: "void f() {}", why: "" }] }, []);
    expect(panel.querySelector(".ein-kernels[data-node='2'] pre").textContent).toBe("void f() {}");
    expect(panel.querySelector(".ein-kernels[data-node='0'] pre")).toBe(null);
    const boxes = () => [...el.querySelectorAll(".ein-nodes input")];
    model.set("history", { here: 0, nodes: [0, 1, 2].map((id) => ({ ...STATE.history.nodes[0], id })), compare: null });
    for (const n of [0, 1, 2]) boxes()[n].click();
    expect(el.querySelector(".ein-nodes").textContent).toContain("E0 #2");
    expect(model.send).toHaveBeenLastCalledWith({ do: "compare", a: 0, b: 1, more: [2] });
  });

  it("zooms, moves and searches the graph", () => {
    const node = (name, x) => `<g class='node'><title>${name}</title><rect x='${x}' y='10' width='20' height='20'/><text x='${x}' y='25'>${name}</text></g>`;
    const { model, el, key } = shown({ panels: ["graph"], graph: { svg: `<svg viewBox='0 0 400 100'>${node("Y", 10)}${node("weights", 370)}</svg>`, says: "", paths: { Y: "0" }, at: "", kinds: [], folded: [], layers: 0, values: {} } });
    const picture = el.querySelector(".ein-graph");
    const view = () => el.querySelector("svg").getAttribute("viewBox").split(" ").map(Number);
    for (let n = 0; n < 6; n++) key("+", picture);
    expect(view()[2] < 120).toBe(true);
    const find = el.querySelector("input[type=search]");
    find.value = "weig";
    find.dispatchEvent(new Event("input"));
    expect(el.querySelector(".ein-found").dataset.name).toBe("weights");
    expect(view()[0] > 300).toBe(true); // it is in view
    expect(el.querySelector(".ein-tools .ein-count").textContent).toBe("1 of 1");
    key("0", picture);
    expect(view()).toEqual([0, 0, 400, 100]);
    click(el.querySelector("g.node rect"));
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0" });
  });

  it("folds layers, and writes values at the nodes of the graph", () => {
    const node = (name, kind) => `<g class='node ${kind}'><title>${name}</title><polygon fill='#ffffff' stroke='black' points='0,0 9,0 9,9'/></g>`;
    const layer = "<g class='cluster layer'><title>cluster_B … C</title><text>B … C</text></g>";
    const graph = { svg: `<svg viewBox='0 0 40 40'>${layer}${node("A … D", "layer")}${node("Y", "expression")}</svg>`, says: "", paths: { Y: "4" }, at: "", kinds: ["layer", "expression"], folded: ["A … D"], layers: 2, values: { time: { Y: ["2 µs, 40 %", 0.5] }, proof: { Y: ["proved, 1 step", "proved"] } } };
    const { model, el } = shown({ panels: ["graph"], graph });
    for (const [place, message] of [["g.cluster", { layer: "B … C" }], ["g.node", { layer: "A … D" }], ["button[title='show all equations']", { all: false }]]) {
      el.querySelector(place).dispatchEvent(new MouseEvent("click", { bubbles: true }));
      expect(model.send).toHaveBeenLastCalledWith({ do: "fold", ...message });
    }
    const filled = () => getComputedStyle(el.querySelector("g.node.expression polygon")).fill;
    const before = filled();
    const colour = el.querySelector("select[aria-label='colour of nodes']");
    const texts = ["time", "proof", "kind"].map((name) => {
      colour.value = name;
      colour.dispatchEvent(new Event("change"));
      return [[...el.querySelectorAll(".ein-value")].map((text) => text.textContent).join(), filled() === before, el.querySelector(".ein-legend").textContent];
    });
    expect(texts).toEqual([["2 µs, 40 %", false, "lessmost, estimated"], ["proved, 1 step", false, "proved"], ["", true, "layerexpression"]]);
  });

  it("writes what others said as text, never as markup", () => {
    const { model, el } = shown();
    expect(el.querySelector(".ein-refusals dd").textContent).toBe("<b>no</b> scope");
    model.set("notice", { text: "<img src=x>", kind: "error", code: "a < b" });
    expect(el.querySelector(".ein-notice span").textContent).toBe("<img src=x>");
    expect(el.querySelector(".ein-notice img")).toBe(null);
  });

  it("lets keys reach what scrolls and holds nothing that takes the focus", async () => {
    const { el } = shown({ rules: { ...structuredClone(STATE.rules), laws: { traversal_merging: "x".repeat(1000) } } });
    const law = el.querySelector(".ein-law");
    expect(law.hasAttribute("tabindex")).toBe(false); // folded away
    el.querySelector(".ein-refusals").open = true;
    for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame);
    expect(law.scrollWidth > law.clientWidth).toBe(true);
    expect(law.tabIndex).toBe(0);
  });

  it("listens no more once its view is gone", () => {
    const { model, leave } = shown();
    leave();
    expect(Object.values(model.listeners).flat()).toEqual([]);
  });

  it("without a kernel answers from what was recorded", async () => {
    const { offline } = await import("../src/main.js");
    const node = { ...structuredClone(STATE), graph: { svg: "<svg></svg>", says: "", paths: { Y: "0" }, at: "Y", kinds: [], folded: [], layers: 0, values: {} }, refusals: { 0: { refusals: [], laws: {} } }, parent: -1, children: [{ node: 1, rule: "summation_splitting", at: "0", params: { outer: ["c"] } }] };
    const child = { ...structuredClone(node), parent: 0, children: [], expression: { ...STATE.expression, node: 1, step: 1 }, head: { ...STATE.head, title: "after" } };
    const el = document.createElement("div");
    document.body.replaceChildren(el);
    const model = offline(el, { panels: STATE.panels, here: 0, nodes: [node, child], search: {}, script: "import", latex: "" });
    model.greyOut(el);
    const grey = [...el.querySelectorAll("[data-do]:disabled")];
    for (const what of ["target", "advise", "clean", "load", "note"]) expect(grey.map((control) => control.dataset.do)).toContain(what);
    expect(grey.every((control) => control.title.includes("this page has no kernel"))).toBe(true);
    expect([...el.querySelectorAll(".ein-match, .ein-node")].some((control) => control.disabled)).toBe(false);
    el.querySelectorAll(".ein-match")[1].click();
    expect(el.querySelector(".ein-notice").textContent).toContain("no kernel");
    el.querySelectorAll(".ein-match")[0].click();
    expect(el.querySelector("h3").textContent).toBe("after");
    model.send({ do: "undo" });
    expect(el.querySelector("h3").textContent).toBe("Y");
    model.send({ do: "redo" });
    expect(el.querySelector("h3").textContent).toBe("after");
  });
});
