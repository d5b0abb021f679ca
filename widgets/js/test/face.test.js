import { beforeAll, describe, expect, it, vi } from "vitest";

class Model {
  constructor(state) {
    this.state = state;
    this.listeners = {};
    this.send = vi.fn();
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

const MATCH = { rule: "summation_splitting", at: "0", params: { outer: ["c"] }, says: "outer = c", distance: -1, seconds: 1e-6, latex: "y", marks: {} };
const STATE = {
  panels: ["history", "expression", "rules"],
  label: "explorer",
  head: { title: "Y", targets: ["", "Matmul"], target: "", undo: true, redo: false },
  notice: {},
  expression: { latex: String.raw`\htmlData{p=0}{\sum_c \htmlData{p=0.0}{x}}`, node: 0, step: 0, at: "0", paths: ["0", "0.0"], names: {}, distance: 1, seconds: 1, marks: {}, before: null, certificate: null },
  rules: { node: 0, at: "0", reach: "scope", matches: [MATCH, { ...MATCH, params: { outer: ["r"] }, latex: null }], refusals: [{ rule: "traversal_merging", at: "0", why: "<b>no</b> scope" }], laws: {} },
  history: { here: 0, nodes: [{ id: 0, parent: -1, branch: 0, step: 0, way: true, rule: "", at: "", says: "" }], compare: null },
};

let face;
beforeAll(async () => {
  globalThis.ResizeObserver = class {
    observe() {}
    disconnect() {}
  };
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

describe("the face", () => {
  it("sends one message a click", () => {
    const { model, el } = shown();
    el.querySelectorAll(".ein-match")[0].click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "apply", rule: "summation_splitting", at: "0", params: { outer: ["c"] } });
    el.querySelector('[data-p="0.0"]').click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0" });
    [...el.querySelectorAll("button")].find((b) => b.textContent.includes("Undo")).click();
    expect(model.send).toHaveBeenLastCalledWith({ do: "undo" });
    expect(model.send).toHaveBeenCalledTimes(3);
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
    expect(model.send).toHaveBeenLastCalledWith({ do: "select", at: "0.0" });
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

  it("shows a preview on hover, and one that had to be asked for", () => {
    const { model, el } = shown();
    el.querySelectorAll(".ein-match")[0].dispatchEvent(new Event("pointerenter"));
    expect(el.querySelector(".ein-preview .katex")).not.toBe(null);
    expect(el.querySelector('[data-p="0"]').dataset.mark).toBe("old");
    el.querySelectorAll(".ein-match")[1].dispatchEvent(new Event("pointerenter"));
    expect(el.querySelector(".ein-preview .katex")).toBe(null);
    model.emit("msg:custom", { do: "preview", match: 1, shown: { latex: "z", text: "z", marks: {} } }, []);
    expect(el.querySelector(".ein-preview .katex")).not.toBe(null);
  });

  it("writes what others said as text, never as markup", () => {
    const { model, el } = shown();
    expect(el.querySelector("dd").textContent).toBe("<b>no</b> scope");
    model.set("notice", { text: "<img src=x>", kind: "error", code: "a < b" });
    expect(el.querySelector(".ein-notice span").textContent).toBe("<img src=x>");
    expect(el.querySelector(".ein-notice img")).toBe(null);
  });

  it("listens no more once its view is gone", () => {
    const { model, leave } = shown();
    leave();
    expect(Object.values(model.listeners).flat()).toEqual([]);
  });

  it("without a kernel answers from what was recorded", async () => {
    const { offline } = await import("../src/main.js");
    const node = { ...structuredClone(STATE), graph: { svg: "<svg></svg>", says: "", paths: { Y: "0" }, at: "Y", kinds: {} }, refusals: { 0: { refusals: [], laws: {} } }, parent: -1, children: [{ node: 1, rule: "summation_splitting", at: "0", params: { outer: ["c"] } }] };
    const child = { ...structuredClone(node), parent: 0, children: [], expression: { ...STATE.expression, node: 1, step: 1 }, head: { ...STATE.head, title: "after" } };
    const el = document.createElement("div");
    document.body.replaceChildren(el);
    const model = offline(el, { panels: STATE.panels, here: 0, nodes: [node, child], search: {}, script: "import", latex: "" });
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
