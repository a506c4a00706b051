// Mouse, fingers and keys on the map.

import { $, named, quoted, say } from "./dom.js";
import { tryText } from "./judge.js";

const REACH = 14; // pixels from a point that still count as on it
const STEP = 60; // pixels that a key moves the map
const WIDEST = 0.7; // of the view that shows all
const NEAREST = 400;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export function listen(map) {
  const canvas = $("canvas");
  const { plot } = map;
  const fingers = new Map();
  let start = null; // where a press began
  let dragged = false;

  const zoom = (factor, x, y) => {
    const wanted = plot.view.scale * factor;
    const scale = Math.min(NEAREST * map.least, Math.max(WIDEST * map.least, wanted));
    plot.zoom(scale / plot.view.scale, x, y);
    map.touched();
  };
  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const under = ([px, py], reach = REACH) =>
    map.grid ? map.grid.nearest(...plot.at(px, py), reach / plot.view.scale, map.passes) : -1;

  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, local(event));
    canvas.setPointerCapture(event.pointerId);
    start = local(event);
    dragged = fingers.size > 1;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = local(event);
    const before = fingers.get(event.pointerId);
    if (!before) return void map.hover(under(now));
    if (!dragged && Math.hypot(now[0] - start[0], now[1] - start[1]) < 5) return undefined;
    dragged = true;
    fingers.set(event.pointerId, now);
    if (fingers.size === 2) {
      const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      const apart = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
      zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    }
    canvas.classList.add("held");
    map.hover(-1);
    plot.pan((now[0] - before[0]) / fingers.size, (now[1] - before[1]) / fingers.size);
    return undefined;
  });
  const lift = (event) => {
    const tapped = fingers.delete(event.pointerId) && !dragged && event.type === "pointerup";
    canvas.classList.remove("held");
    if (tapped) map.hover(under(local(event), event.pointerType === "mouse" ? REACH : 2 * REACH));
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && map.hover(-1));
  canvas.addEventListener("dblclick", (event) => attempt(under(local(event))));
  canvas.addEventListener("wheel", (event) => {
    // The page scrolls past the map, unless the map was clicked or this is a pinch.
    if (!map.grid || (!event.ctrlKey && document.activeElement !== canvas)) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), ...local(event));
  }, { passive: false });

  const attempt = (i) => {
    if (i >= 0) tryText(map.loaded.texts.text[i]);
  };
  const step = (dx, dy) => {
    const from = map.hovered >= 0 ? [plot.points.x[map.hovered], plot.points.y[map.hovered]] : [plot.view.x, plot.view.y];
    const found = map.hovered < 0
      ? map.grid.nearest(...from, Infinity, map.passes)
      : map.grid.towards(...from, dx, dy, map.passes);
    if (found < 0) return say($("map-said"), "Nothing further that way.");
    const [px, py] = plot.place(plot.points.x[found], plot.points.y[found]);
    if (px < 0 || py < 0 || px > plot.width || py > plot.height) plot.pan(plot.width / 2 - px, plot.height / 2 - py);
    map.hover(found);
    const label = map.loaded.texts.label?.[found];
    return say($("map-said"), `${quoted(map.loaded.texts.text[found], 200)}${label ? `, ${named(label)}` : ""}`);
  };
  const keys = {
    "+": () => zoom(1.4),
    "=": () => zoom(1.4),
    "-": () => zoom(1 / 1.4),
    0: () => map.showAll(),
    Enter: () => attempt(map.hovered),
    Escape: () => map.hover(-1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!map.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    if (arrow && event.shiftKey) plot.pan(-arrow[0] * STEP, arrow[1] * STEP);
    else if (arrow) step(...arrow);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => map.hover(-1));
  $("zoom-in").addEventListener("click", () => zoom(1.6));
  $("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
  $("zoom-fit").addEventListener("click", () => map.showAll());
}
