import { describe, expect, it } from "./check.js";
import { LONGEST, formula, mark, walk } from "../src/formula.js";

describe("formula", () => {
  it("keeps the paths of scopes, and trusts nothing else", () => {
    const box = formula({ latex: String.raw`\htmlData{p=0}{\sum_c \htmlData{p=0.1}{A[c]}}`, marks: { 0.1: "new" } });
    expect([...box.querySelectorAll("[data-p]")].map((e) => e.dataset.p)).toEqual(["0", "0.1"]);
    expect(box.querySelector("[data-mark=new]").dataset.p).toBe("0.1");
    mark(box, { 0: "old" });
    expect([...box.querySelectorAll("[data-mark]")].map((e) => e.dataset.p)).toEqual(["0"]);
    expect(formula({ latex: String.raw`\href{https://example.com}{x}` }).querySelector("a")).toBe(null);
  });

  it("shows text where TeX is broken or too long", () => {
    expect(formula({ latex: String.raw`\frac{`, text: "a / b" }).textContent).toContain("a / b");
    expect(formula({ latex: "x".repeat(LONGEST + 1), text: "long" }).querySelector("pre").textContent).toBe("long");
  });
});

describe("walk", () => {
  const paths = ["0", "0.0", "0.0.1", "0.2", "1"];
  it("goes to children, parents and siblings", () => {
    expect(walk(paths, "0", "ArrowDown")).toBe("0.0");
    expect(walk(paths, "0.0", "ArrowDown")).toBe("0.0.1");
    expect(walk(paths, "0.0", "ArrowRight")).toBe("0.2");
    expect(walk(paths, "0.2", "ArrowRight")).toBe("0.0");
    expect(walk(paths, "0", "ArrowLeft")).toBe("1");
    expect(walk(paths, "0.2", "ArrowUp")).toBe("0");
    expect(walk(paths, "0", "ArrowUp")).toBe("0");
    expect(walk(paths, "9", "ArrowUp")).toBe("0");
    expect(walk([], "", "ArrowDown")).toBe("");
  });
});
