import { describe, expect, it } from "./check.js";
import { LONGEST, all, fill, formula, mark, walk } from "../src/formula.js";

const token = (name, shown) => `\x04${name}\x05${shown}\x06`;
const INNER = token("p0.0", `${token("", "\\{")}\x01${token("t1", "A")}[\x01k, \x02k\x03]\x03${token("", "\\}")}`);
/** Y = Σ_i {A[k, k]}[i, i + 1] */
const MARKED = `${token("t0", "Y")} = ${token("p0", `\\sum_{${token("x0_0", "i")}}\\; \x02${token("", "+")}${INNER}[\x01${token("x0_0", "i")}, \x02${token("", "1")}\x03]`)}`;

describe("formula", () => {
  it("names scopes and tokens, numbers leaves, and trusts nothing else", () => {
    const box = formula({ latex: MARKED, marks: { new: [3, 4] } });
    expect([...box.querySelectorAll("[data-p]")].map((e) => e.dataset.p)).toEqual(["0", "0.0"]);
    expect([...box.querySelectorAll("[data-mark=new]")].map((e) => e.textContent)).toEqual(["{", "A"]);
    mark(box, { old: [0] });
    expect([...box.querySelectorAll("[data-mark]")].map((e) => e.textContent)).toEqual(["Y"]);
    expect(all(box, "x0_0").length).toBe(2);
    expect(formula({ latex: String.raw`\href{https://example.com}{x}` }).querySelector("a")).toBe(null);
  });

  it("shows text where TeX is broken or too long", () => {
    expect(formula({ latex: String.raw`\frac{`, text: "a / b" }).textContent).toContain("a / b");
    expect(formula({ latex: "x".repeat(LONGEST + 1), text: "long" }).querySelector("pre").textContent).toBe("long");
  });
});

describe("lines", () => {
  const seen = async (width) => {
    const holder = document.createElement("section");
    holder.className = "ein";
    holder.style.width = `${width}px`;
    const box = formula({ latex: MARKED, marks: { new: [6] } });
    holder.append(box);
    document.body.append(holder);
    await new Promise((done) => box.addEventListener("layout", done, { once: true }));
    const rows = [...box.querySelectorAll(".ein-row")].map((row) => row.querySelector(".katex-html").textContent);
    const found = { rows, scrolls: box.scrollWidth > box.clientWidth, scopes: all(box, "p0").length, marked: box.querySelector("[data-mark]").textContent };
    holder.remove();
    return found;
  };

  it("end at operators and scopes where a formula does not fit, and tokens go on", async () => {
    const wide = await seen(600);
    expect(wide.rows.length).toBe(1);
    const narrow = await seen(130);
    expect(narrow.scrolls).toBe(false);
    expect(narrow.rows.length > 1 && narrow.scopes === narrow.rows.length).toBe(true);
    expect(narrow.marked).toBe(wide.marked);
  });

  it("keep what fits together, and indent what is in brackets", () => {
    const piece = (from) => ({ from, to: from + 1 });
    const root = { parts: [[piece(0)], [piece(1), { parts: [[piece(2)], [piece(3)]] }, piece(4)]] };
    const places = [0, 10, 20, 30, 40, 50];
    expect(fill(root, places, 50, 0)).toEqual([{ from: 0, indent: 0 }]);
    expect(fill(root, places, 40, 0)).toEqual([{ from: 0, indent: 0 }, { from: 1, indent: 1 }]);
    expect(fill(root, places, 25, 0)).toEqual([{ from: 0, indent: 0 }, { from: 1, indent: 1 }, { from: 3, indent: 2 }]);
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
