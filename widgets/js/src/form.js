// Parameters in their JSON form, as fields.
import { h } from "./dom.js";

/** The text of one value: lists of names by commas, maps one entry a line, all else as JSON. */
export function show(value) {
  if (Array.isArray(value) && value.every((v) => typeof v === "string" || typeof v === "number")) return value.join(", ");
  if (value && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((v) => typeof v === "string")) {
    return Object.entries(value)
      .map(([name, v]) => `${name} = ${v}`)
      .join("\n");
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The inverse of `show`: *like* is the value that it was made from. */
export function read(text, like) {
  const words = text.trim();
  if (Array.isArray(like) && like.every((v) => typeof v === "string" || typeof v === "number")) {
    const parts = words ? words.split(",").map((part) => part.trim()) : [];
    return like.length && like.every((v) => typeof v === "number") ? parts.map(Number) : parts;
  }
  if (like && typeof like === "object" && !Array.isArray(like) && Object.values(like).every((v) => typeof v === "string")) {
    return Object.fromEntries(
      words
        .split("\n")
        .filter((line) => line.trim())
        .map((line) => {
          const [name, ...rest] = line.split("=");
          return [name.trim(), rest.join("=").trim()];
        }),
    );
  }
  if (typeof like === "string") return words;
  return JSON.parse(words);
}

/** A form with one field a parameter of *match*; *submit* is called with the parameters. */
export function form(match, submit) {
  const said = h("p.ein-error", { role: "alert" });
  const fields = Object.entries(match.params).map(([name, value]) => {
    const lines = show(value).split("\n").length;
    const map = value && typeof value === "object" && !Array.isArray(value);
    const input = map ? h("textarea", { rows: Math.max(2, lines), value: show(value) }) : h("input", { type: "text", value: show(value) });
    return { name, value, input, row: h("label", {}, h("span", {}, name), input) };
  });
  return h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const params = {};
        for (const { name, value, input } of fields) {
          try {
            params[name] = read(input.value, value);
          } catch (error) {
            said.textContent = `${name}: ${error.message}`;
            input.focus();
            return;
          }
        }
        submit(params);
      },
    },
    fields.map(({ row }) => row),
    said,
    h("button", { type: "submit" }, "Apply with these"),
  );
}
