// The false-alarm rate: one slider, and everything on the page decided again.

import { call } from "./api.js";
import { $, IN, OUT, complain, dot, make, number, percent, score } from "./dom.js";
import { asAdmin } from "./keys.js";
import { emit, isOut, on, state } from "./state.js";

const LOW = -3; // log10 of the lowest rate
const PER_DECADE = 100;
const TICKS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
const MANY = 400; // from so many in-scope scores on, the service tells only some of them

const rateAt = (step) => Number((10 ** (LOW + step / PER_DECADE)).toPrecision(2));
const stepOf = (rate) => Math.round((Math.log10(rate) - LOW) * PER_DECADE);

let asking = null; // a promise while a question is on its way
let next = null;

/** Ask for the threshold at the chosen rate; of many questions only the last is asked. */
export function refresh() {
  next = { model: state.model.model, ...(state.fpr === null ? {} : { fpr: state.fpr }) };
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

async function ask() {
  try {
    while (next) {
      const body = next;
      next = null;
      const cut = await call("v1/threshold", { body });
      if (cut.model !== state.model.model) continue;
      state.cut = cut;
      complain($("rate-error"), "");
      emit("cut");
    }
  } catch (error) {
    next = null;
    complain($("rate-error"), error.message);
  }
}

function moved() {
  if (!state.model) return; // no key was given yet
  const slider = $("rate");
  const least = state.cut?.least_fpr ?? 0;
  let rate = rateAt(Number(slider.value));
  const below = rate < least;
  if (below) {
    rate = least;
    slider.value = Math.ceil((Math.log10(least) - LOW) * PER_DECADE);
  }
  state.fpr = rate;
  tell(rate);
  $("least").hidden = !below;
  if (below) $("least").textContent = `This model can promise no less than ${percent(least)}: it was calibrated on too few texts for that.`;
  refresh();
}

function tell(rate) {
  $("rate-value").textContent = rate === null ? "own" : percent(rate);
  $("rate").ariaValueText = rate === null ? "the model’s own threshold" : `${percent(rate)} false alarms`;
}

/** Show the threshold in words and count what it does. */
function show() {
  const { cut } = state;
  if (!cut) return;
  if (state.fpr === null && cut.fpr !== null) $("rate").value = stepOf(cut.fpr);
  tell(state.fpr ?? cut.fpr);
  $("own-rate").hidden = $("keep-rate").hidden = state.fpr === null;
  $("promise").textContent = `${cut.promised ? "Promised: " : ""}${cut.promise}.`;
  const lines = [["Threshold", score(cut.threshold)]];
  if (state.result) lines.push(["Your text", isOut(state.result) ? OUT : IN, dot(isOut(state.result))]);
  const known = cut.in_scope_scores;
  if (known.length) {
    const flagged = known.filter((one) => one > cut.threshold).length;
    const counted = known.length > MANY ? percent(flagged / known.length) : `${number(flagged)} of ${number(known.length)}`;
    lines.push(["In-scope texts above it", counted]);
  }
  const judged = state.rows.filter((row) => row.result);
  if (judged.length) {
    const flagged = judged.filter((row) => isOut(row.result)).length;
    lines.push(["Your file, out of scope", `${number(flagged)} of ${number(judged.length)}`]);
  }
  $("counts").replaceChildren(...lines.map(([name, value, mark]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, mark, mark ? " " : null, value))));
}

function back() {
  state.fpr = null;
  $("least").hidden = true;
  refresh();
}

/** Make the rate that of the model, for everyone. */
async function keep() {
  const body = { model: state.model.model, fpr: state.fpr, change: true };
  try {
    const answer = await asAdmin(() => call("v1/threshold", { body, admin: true }));
    if (answer === null) return;
    state.fpr = null;
    emit("changed", answer);
    $("rate").focus();
  } catch (error) {
    complain($("rate-error"), error.message);
  }
}

export function setUp() {
  $("ticks").replaceChildren(...TICKS.map((rate) => {
    const tick = make("span", {}, percent(rate).replace(" %", ""));
    // The thumb of a slider does not reach its ends: half of its width is kept free.
    tick.style.left = `calc(8px + (100% - 16px) * ${stepOf(rate) / Number($("rate").max)})`;
    return tick;
  }));
  $("rate").addEventListener("input", moved);
  $("own-rate").addEventListener("click", () => {
    back();
    $("rate").focus();
  });
  $("keep-rate").addEventListener("click", keep);
  on("cut", show);
  on("result", show);
  on("rows", show);
}
