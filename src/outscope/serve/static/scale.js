// The score of a text beside the threshold and the scores of in-scope texts.

import { draw, score as shown } from "./dom.js";

const HEIGHT = 148;
const FLOOR = 112; // where the axis is
const TOP = 34;
const POINTS = 90;

/** Redraw the scale. `scores` are those of in-scope texts, in order; `value` is the text's. */
export function drawScale(place, { value, threshold, scores, words }) {
  const width = Math.max(280, place.clientWidth);
  const [low, high] = domain(scores, threshold, value);
  const x = (score) => 10 + ((score - low) / (high - low)) * (width - 20);
  const out = value > threshold;
  const cut = x(threshold);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": words });
  svg.append(draw("rect", { class: "strange", x: cut, y: TOP - 12, width: width - cut, height: FLOOR - TOP + 12 }));
  if (scores.length > 1) svg.append(draw("path", { class: "usual", d: hill(scores, x, low, high) }));
  svg.append(
    draw("line", { class: "axis", x1: 0, x2: width, y1: FLOOR, y2: FLOOR }),
    draw("line", { class: "cut", x1: cut, x2: cut, y1: TOP - 12, y2: FLOOR }),
    label(`threshold ${shown(threshold)}`, cut, 14, width, "cut-word"),
    ...ticks(low, high, x),
    mark(x(value), out),
    label(shown(value), x(value), FLOOR - 20, width, `point-word ${out ? "out" : ""}`),
  );
  place.replaceChildren(svg);
}

function domain(scores, threshold, value) {
  const all = [threshold, value, ...(scores.length ? [scores[0], scores[scores.length - 1]] : [0])];
  const least = Math.min(...all);
  const most = Math.max(...all, least + 1e-6);
  const room = 0.1 * (most - least);
  return [least - room, most + room];
}

/** How dense the scores are, as the outline of a hill (a kernel estimate). */
function hill(scores, x, low, high) {
  const n = scores.length;
  const mean = scores.reduce((sum, one) => sum + one, 0) / n;
  const spread = Math.sqrt(scores.reduce((sum, one) => sum + (one - mean) ** 2, 0) / n);
  const wide = Math.max(1.06 * spread * n ** -0.2, (high - low) / 400);
  const heights = Array.from({ length: POINTS + 1 }, (_, i) => {
    const at = low + (i / POINTS) * (high - low);
    return scores.reduce((sum, one) => sum + Math.exp(-0.5 * ((at - one) / wide) ** 2), 0);
  });
  const tallest = Math.max(...heights);
  const outline = heights.map((height, i) => {
    const y = FLOOR - (height / tallest) * (FLOOR - TOP - 8);
    return `${x(low + (i / POINTS) * (high - low)).toFixed(1)},${y.toFixed(1)}`;
  });
  return `M${x(low)},${FLOOR}L${outline.join("L")}L${x(high)},${FLOOR}Z`;
}

function ticks(low, high, x) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    found.push(draw("text", { x: x(at), y: FLOOR + 26, "text-anchor": "middle" }, Number(at.toPrecision(6)).toString()));
  }
  return found;
}

/** In scope is a circle, out of scope a diamond. */
function mark(x, out) {
  if (!out) return draw("circle", { class: "point", cx: x, cy: FLOOR, r: 8 });
  return draw("path", { class: "point out", d: `M${x},${FLOOR - 10}l10,10l-10,10l-10,-10z` });
}

function label(words, x, y, width, kind) {
  const half = 3.6 * words.length;
  const at = Math.min(Math.max(x, half + 2), width - half - 2);
  return draw("text", { class: kind, x: at, y, "text-anchor": "middle" }, words);
}
