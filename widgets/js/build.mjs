// Builds ../einnet_widgets/static: one module, one style sheet, and the sha256 of every source, which a test compares.
import * as esbuild from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "einnet_widgets", "static");
const sources = ["build.mjs", "package.json", ...readdirSync(join(here, "src")).sort().map((name) => `src/${name}`)];

await esbuild.build({
  absWorkingDir: here,
  entryPoints: { einnet: "src/main.js" },
  outdir: out,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  loader: { ".woff2": "binary" },
  legalComments: "none",
  logLevel: "warning",
});

// KaTeX's own style sheet without its fonts: those are in the module, since @font-face is ignored in a shadow root.
const katex = readFileSync(join(here, "node_modules/katex/dist/katex.min.css"), "utf8").replace(/@font-face\{[^}]*\}/g, "");
const own = await esbuild.transform(readFileSync(join(here, "src/style.css"), "utf8"), { loader: "css", minify: true });
writeFileSync(join(out, "einnet.css"), `${katex}\n${own.code}`);

const digest = (name) => createHash("sha256").update(readFileSync(join(here, name))).digest("hex");
writeFileSync(join(out, "sources.json"), `${JSON.stringify(Object.fromEntries(sources.map((name) => [name, digest(name)])), null, 1)}\n`);
