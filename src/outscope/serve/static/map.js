// The map: what is loaded, what lies on top of the points, and the legend.

import { patiently } from "./api.js";
import { $, debounced, draw, make, named, plural } from "./dom.js";
import { Grid, extent } from "./grid.js";
import { listen } from "./moving.js";
import { Plot } from "./plot.js";
import { emit, isOut, on, state } from "./state.js";

const plot = new Plot($("canvas"));
const map = { loaded: null, grid: null, labels: [], hovered: -1, box: null, plot };

/** Get the map of the model and draw it; while it is made, the page goes on. */
async function load() {
  const name = state.model.model;
  const first = map.loaded?.model !== name;
  if (first) {
    map.loaded = null;
    note("Drawing the map …");
  }
  try {
    const loaded = await patiently(`v1/models/${encodeURIComponent(name)}/map`);
    if (name === state.model.model) show(loaded, first);
  } catch (error) {
    if (first) note(error.status === 409 ? "This model stores no vectors that a map could show." : error.message);
  }
}

function note(words) {
  $("map-note").textContent = words;
  $("map-note").hidden = !words;
  $("map-key").hidden = $("legend").hidden = Boolean(words);
}

function show(loaded, first) {
  map.loaded = loaded;
  map.hovered = -1;
  map.labels = loaded.labels || [];
  const index = new Map(map.labels.map((label, i) => [label, i]));
  const labels = loaded.texts.label || [];
  plot.points = {
    x: Float64Array.from(loaded.texts.x),
    y: Float64Array.from(loaded.texts.y),
    label: Int32Array.from(loaded.texts.x, (_, i) => index.get(labels[i]) ?? 0),
  };
  plot.atoms = loaded.atoms;
  map.grid = new Grid(plot.points.x, plot.points.y);
  const x = extent([...extent(loaded.texts.x.length ? loaded.texts.x : loaded.atoms.x), ...extent(loaded.atoms.x)]);
  const y = extent([...extent(loaded.texts.y.length ? loaded.texts.y : loaded.atoms.y), ...extent(loaded.atoms.y)]);
  map.box = [x, y];
  note("");
  $("canvas").ariaLabel = `Map of ${plural(loaded.texts.x.length, "in-scope text")} and ${plural(loaded.atoms.x.length, "atom")}`;
  if (first) plot.style.chosen = null;
  colour();
  legend();
  plot.resize();
  if (first) map.showAll();
  else plot.redraw();
  emit("map", loaded);
}

/** Show everything, your text as well. */
map.showAll = () => {
  if (!map.box) return;
  const place = state.result?.position;
  const [x, y] = map.box;
  plot.fit(place ? extent([...x, place[0]]) : x, place ? extent([...y, place[1]]) : y);
  map.least = plot.view.scale;
  map.touched();
};

/** A page can still be scrolled with a finger on the map, unless the map is zoomed. */
map.touched = () => $("canvas").classList.toggle("zoomed", plot.view.scale > 1.05 * map.least);

map.passes = (i) => plot.style.chosen === null || plot.points.label[i] === plot.style.chosen;

/** Show a text on the map; −1 for none. */
map.hover = (i) => {
  if (i === map.hovered) return;
  map.hovered = i;
  const tip = $("tip");
  tip.hidden = i < 0;
  if (i >= 0) {
    const label = map.loaded.texts.label?.[i];
    const head = label === undefined || label === null ? null : make("b", {}, named(label));
    tip.replaceChildren(...[head, map.loaded.texts.text[i]].filter(Boolean));
    putTip();
  }
  plot.frame();
};

/** Beside the point, and within the map. */
function putTip() {
  const tip = $("tip");
  const [x, y] = plot.place(plot.points.x[map.hovered], plot.points.y[map.hovered]);
  const left = Math.min(Math.max(6, x - tip.offsetWidth / 2), plot.width - tip.offsetWidth - 6);
  const above = y - tip.offsetHeight - 12;
  const top = above > 4 ? above : Math.min(y + 14, plot.height - tip.offsetHeight - 4);
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

// ---- on top of the points

plot.overlay = (context) => {
  const result = state.result;
  const [ink, card] = [css("--ink"), css("--card")];
  if (map.hovered >= 0) {
    const [x, y] = plot.place(plot.points.x[map.hovered], plot.points.y[map.hovered]);
    ring(context, x, y, plot.radius() + 4, ink, 2);
    putTip();
  }
  if (!result?.position || !state.cut || !map.loaded) return;
  const place = plot.place(...result.position);
  for (const atom of result.evidence) {
    if (atom.atom >= plot.atoms.x.length) continue;
    const [x, y] = plot.place(plot.atoms.x[atom.atom], plot.atoms.y[atom.atom]);
    context.lineWidth = 1 + 5 * Math.min(1, atom.share);
    context.strokeStyle = css("--accent");
    context.globalAlpha = 0.55;
    context.beginPath();
    context.moveTo(...place);
    context.lineTo(x, y);
    context.stroke();
    context.globalAlpha = 1;
    ring(context, x, y, plot.ring(), css("--accent"), 2.5);
  }
  query(context, place, isOut(result), card);
};

function ring(context, x, y, radius, colour, width) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.stroke();
}

/** Your text: a circle or a diamond; at the edge if it lies beyond. */
function query(context, [x, y], out, card) {
  const edge = 12;
  const px = Math.min(Math.max(x, edge), plot.width - edge);
  const py = Math.min(Math.max(y, edge), plot.height - edge);
  context.fillStyle = css(out ? "--out" : "--accent");
  context.strokeStyle = card;
  context.lineWidth = 2.5;
  context.beginPath();
  if (out) {
    context.moveTo(px, py - 11);
    for (const [dx, dy] of [[11, 0], [0, 11], [-11, 0]]) context.lineTo(px + dx, py + dy);
    context.closePath();
  } else context.arc(px, py, 8.5, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  ring(context, px, py, 14, css("--ink"), 1.5);
}

// ---- colours

let colours = {};
const css = (name) => colours[name];

/** Hues as far apart as the number of classes allows, in two shades. */
function hue(i, dark) {
  const turn = (25 + i * 137.508) % 360;
  const light = (dark ? 0.76 : 0.6) + (i % 2 ? 0.06 : -0.04);
  return `oklch(${light.toFixed(2)} 0.14 ${turn.toFixed(0)})`;
}

function colour() {
  const style = getComputedStyle(document.documentElement);
  const names = ["--ink", "--card", "--accent", "--out", "--edge"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
  const dark = style.colorScheme === "dark";
  plot.style.colours = map.labels.length ? map.labels.map((_, i) => hue(i, dark)) : [colours["--edge"]];
  plot.style.atom = colours["--edge"];
}

function legend() {
  const counts = new Array(map.labels.length).fill(0);
  for (const label of plot.points.label) counts[label] += 1;
  $("legend").hidden = map.labels.length === 0;
  $("legend").replaceChildren(...map.labels.map((label, i) => {
    const dot = draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, draw("circle", { cx: 5, cy: 5, r: 5, fill: plot.style.colours[i] }));
    const pressed = plot.style.chosen === i;
    return make("button", { type: "button", title: plural(counts[i], "text"), ariaPressed: String(pressed), onclick: () => choose(i) }, dot, named(label));
  }));
}

function choose(i) {
  plot.style.chosen = plot.style.chosen === i ? null : i;
  for (const [at, button] of [...$("legend").children].entries()) button.ariaPressed = String(plot.style.chosen === at);
  map.hover(-1);
  plot.redraw();
}

/** Colours have changed. */
export function recolour() {
  colour();
  if (!map.loaded) return;
  legend();
  plot.redraw();
}

export function setUp() {
  colour();
  listen(map);
  new ResizeObserver(debounced(60, () => {
    plot.resize();
    if (map.loaded) plot.redraw();
  })).observe($("canvas"));
  on("model", load);
  on("changed", load);
  on("result", () => plot.frame());
  on("cut", () => plot.frame());
  plot.resize();
}
