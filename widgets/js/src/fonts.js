// KaTeX's fonts, from inside the module: @font-face is ignored in a shadow root, relative addresses have no base
// there, and a font given as bytes needs no request.
import ams from "katex/dist/fonts/KaTeX_AMS-Regular.woff2";
import mainBold from "katex/dist/fonts/KaTeX_Main-Bold.woff2";
import mainItalic from "katex/dist/fonts/KaTeX_Main-Italic.woff2";
import main from "katex/dist/fonts/KaTeX_Main-Regular.woff2";
import math from "katex/dist/fonts/KaTeX_Math-Italic.woff2";
import size1 from "katex/dist/fonts/KaTeX_Size1-Regular.woff2";
import size2 from "katex/dist/fonts/KaTeX_Size2-Regular.woff2";
import size3 from "katex/dist/fonts/KaTeX_Size3-Regular.woff2";
import size4 from "katex/dist/fonts/KaTeX_Size4-Regular.woff2";

const FONTS = [
  ["KaTeX_AMS", ams],
  ["KaTeX_Main", main],
  ["KaTeX_Main", mainBold, "bold"],
  ["KaTeX_Main", mainItalic, "normal", "italic"],
  ["KaTeX_Math", math, "normal", "italic"],
  ["KaTeX_Size1", size1],
  ["KaTeX_Size2", size2],
  ["KaTeX_Size3", size3],
  ["KaTeX_Size4", size4],
];

/** Make the fonts known to *page*, once. */
export function registerFonts(page) {
  if (page.einnetFonts || !page.fonts || typeof FontFace === "undefined") return;
  page.einnetFonts = true;
  for (const [family, bytes, weight = "normal", style = "normal"] of FONTS) {
    page.fonts.add(new FontFace(family, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength), { weight, style }));
  }
}
