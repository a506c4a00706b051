// One text: the decision at once, and why.

import { patiently } from "./api.js";
import { $, IN, OUT, complain, debounced, make, named, percent, plural, quoted, say, score } from "./dom.js";
import { drawScale } from "./scale.js";
import { classOf, emit, isOut, on, state } from "./state.js";

const QUIET = 180; // milliseconds without typing
const REASONS = 4;
const MARKS = {
  in: "M12 1.5a10.5 10.5 0 1 0 0 21 10.5 10.5 0 0 0 0-21zm-1.6 15.5-4.6-4.6 1.900-1.900 2.700 2.700 6-6 1.900 1.900z",
  out: "M12 0.5 23.5 12 12 23.5 0.5 12zm-1.400 5.5v7.5h2.800V6zm0 9.300V18h2.800v-2.700z",
};

let running = new AbortController();
let latest = Promise.resolve();
let mapped = null; // version of the model that the map shows
let placed = {}; // where the last text lay, and on the map of which version

/** Judge the text in the box; done when the newest text is judged and shown. */
export function judge() {
  running.abort();
  running = new AbortController();
  latest = once(running.signal);
  return latest;
}

async function once(signal) {
  if (!state.text.trim() || !state.model) return clear();
  $("result").ariaBusy = "true";
  try {
    const body = bodyFor(state.text);
    const waiting = (seconds) => complain($("text-error"), `The service is busy. Trying again in ${seconds} s …`);
    const answer = await patiently("v1/explain", { body, signal }, waiting);
    complain($("text-error"), "");
    const result = answer.results[0];
    const unplaced = !result.position;
    if (!unplaced) placed = { text: state.text, position: result.position, version: answer.version };
    else if (placed.text === state.text) result.position = placed.position; // until it is known again
    state.result = result;
    if (answer.version !== state.cut.version) emit("changed", answer);
    emit("result");
    if (unplaced && mapped === answer.version) { // it was judged while the map was being made
      mapped = null;
      return judge();
    }
  } catch (error) {
    if (error.name === "AbortError") return latest;
    fail(error.message);
  }
  return undefined;
}

function bodyFor(text) {
  const asked = { model: state.model.model, n_atoms: REASONS };
  if (state.model.kind === "texts") return { ...asked, texts: [text] };
  const numbers = text.split(/[\s,;[\]]+/).filter(Boolean).map(Number);
  if (numbers.length !== state.model.n_features || numbers.some((one) => !Number.isFinite(one))) {
    throw new Error(`This model takes vectors: paste ${state.model.n_features} numbers. These are ${numbers.length}, or not all are numbers.`);
  }
  return { ...asked, vectors: [numbers] };
}

function clear() {
  state.result = null;
  complain($("text-error"), "");
  emit("result");
}

function fail(words) {
  state.result = null;
  emit("result");
  complain($("text-error"), words);
}

/** Put a text into the box, as if it had been typed. */
export function tryText(text) {
  $("text").value = text;
  state.text = text;
  $("try").scrollIntoView({ block: "nearest" });
  $("text").focus({ preventScroll: true });
  return judge();
}

let told = ""; // the decision that was last read out

/** Show the result; where only the threshold has moved, a decision is read out if it has changed. */
function show(moved = false) {
  const { result, cut } = state;
  $("result").hidden = !result;
  $("result").ariaBusy = "false";
  $("examples").hidden = Boolean(state.text.trim()) || $("examples").childElementCount < 2;
  if (!result || !cut) return;
  const out = isOut(result);
  const label = classOf(result);
  const word = out ? OUT : IN;
  $("verdict").className = `verdict ${out ? "out" : "in"}`;
  $("mark").setAttribute("d", MARKS[out ? "out" : "in"]);
  $("decision").textContent = !out && label !== null ? `${word}: ${named(label)}` : word;
  $("because").textContent = because(result, out, label);
  const side = out ? "above" : "not above";
  const words = `Score ${score(result.ood_score)}, ${side} the threshold ${score(cut.threshold)}.`;
  drawScale($("scale"), { value: result.ood_score, threshold: cut.threshold, scores: cut.in_scope_scores, words });
  $("scale-words").textContent = cut.in_scope_scores.length
    ? "Higher is stranger. The hill shows the scores of in-scope texts; above the threshold is out of scope."
    : "Higher is stranger; above the threshold is out of scope.";
  reasons(result);
  if (!moved || told !== word) say($("said"), `${$("decision").textContent}. ${words}`);
  told = word;
}

function because(result, out, label) {
  const parts = [];
  if (out && result.refused_like) parts.push(`Refused: like ${quoted(result.refused_like)}.`);
  const known = state.cut.in_scope_scores;
  if (result.p_value === null) parts.push(out ? "Its score is above the threshold." : "Its score is not above the threshold.");
  else if (result.ood_score > known[known.length - 1]) {
    parts.push(`Stranger than every in-scope text it was compared with (p-value ${score(result.p_value)}).`);
  } else parts.push(`${result.p_value > 0.99 ? "Nearly all" : `About ${percent(result.p_value)} of`} in-scope texts are at least this strange (p-value ${score(result.p_value)}).`);
  if (out && label !== null) parts.push(`The closest class is ${named(label)}.`);
  return parts.join(" ");
}

function reasons(result) {
  const items = result.evidence.map((atom) => reason(atom));
  const plain = items.length === 0;
  if (plain) items.push(...result.nearest.map((text) => make("li", {}, text)));
  $("reasons-box").hidden = items.length === 0;
  $("reasons-box").firstElementChild.textContent = plain ? "In-scope texts most like it"
    : isOut(result) ? "In-scope texts that come closest" : "In-scope texts that explain it";
  $("reasons").replaceChildren(...items);
  const left = result.unexplained;
  $("rest").textContent = left === null || plain ? "" : `What is in scope leaves ${percent(Math.min(1, left))} of it unexplained.`;
}

function reason(atom) {
  const bar = make("i");
  bar.style.width = `${Math.min(100, 100 * atom.share)}%`;
  const texts = atom.texts.length ? atom.texts : [plural(atom.rows.length, "training row") + `: ${atom.rows.join(", ")}`];
  const list = texts.slice(0, 2).map((text, i) => {
    const label = atom.labels[i];
    return make("li", {}, text, label === undefined || label === null ? null : make("span", { className: "tag" }, named(label)));
  });
  const share = make("span", { className: "share", title: `weight ${atom.weight.toFixed(3)}` }, percent(atom.share));
  share.append(make("span", { className: "visually-hidden" }, ` of the explanation, weight ${atom.weight.toFixed(2)}`));
  return make("li", { className: "reason" }, share, make("div", { className: "meter", ariaHidden: "true" }, bar), make("ul", {}, ...list));
}

/** Offer a few texts to start from: some of the model's own, some of no model's. */
function offer(map) {
  const own = map && map.texts.text ? map.texts.text.filter((text) => text.length < 60) : [];
  const some = [own[0], own[Math.floor(own.length / 2)], "Write me a poem about autumn leaves", "How far away is Jupiter?"];
  const buttons = some.filter(Boolean).map((text) => make("button", { type: "button", onclick: () => tryText(text) }, text));
  $("examples").replaceChildren($("examples").firstElementChild, ...buttons);
  $("examples").hidden = state.model.kind !== "texts" || Boolean(state.text.trim());
}

export function setUp() {
  const later = debounced(QUIET, judge);
  $("text").addEventListener("input", () => {
    state.text = $("text").value;
    if (state.result) $("result").ariaBusy = "true";
    $("taught").textContent = "";
    later();
  });
  new ResizeObserver(debounced(60, () => state.result && redraw())).observe($("scale"));
  on("result", () => show());
  on("cut", () => state.result && show(true));
  on("map", (map) => {
    offer(map);
    mapped = map.version;
    if (state.result && placed.version !== mapped) judge(); // now that there is a map to be on
  });
  on("model", () => {
    placed = {};
    const vectors = state.model.kind !== "texts";
    $("text").placeholder = vectors ? `Paste a vector: ${state.model.n_features} numbers` : "Type or paste a text";
    judge();
  });
}

function redraw() {
  const { result, cut } = state;
  const words = $("scale").firstElementChild?.getAttribute("aria-label") || "";
  drawScale($("scale"), { value: result.ood_score, threshold: cut.threshold, scores: cut.in_scope_scores, words });
}

