// "This should be refused", "this should be accepted", and back.

import { call } from "./api.js";
import { $, IN, OUT, complain, quoted, score } from "./dom.js";
import { judge } from "./judge.js";
import { asAdmin } from "./keys.js";
import { emit, isOut, on, state } from "./state.js";

let lessons = 0; // taught from this page and not taken back
let busy = false;

async function teach(action) {
  if (busy || !state.result) return;
  const text = state.text;
  const before = { score: state.result.ood_score, out: isOut(state.result), cut: state.cut.threshold };
  const body = { model: state.model.model, action, ...(action === "undo" ? {} : { texts: [text] }) };
  busy = true;
  buttons();
  complain($("teach-error"), "");
  try {
    const answer = await asAdmin(() => call("v1/feedback", { body, admin: true }));
    if (answer === null) return;
    lessons += action === "undo" ? -1 : 1;
    await new Promise((resolve) => emit("changed", { ...answer, resolve }));
    await judge();
    $("taught").textContent = told(action, text, before, answer);
  } catch (error) {
    complain($("teach-error"), error.message);
  } finally {
    busy = false;
    buttons();
    if (action === "undo" && lessons === 0) $("refuse").focus();
  }
}

/** What changed, in words. */
function told(action, text, before, answer) {
  const what = { refuse: "Told to refuse texts like", accept: "Told to accept texts like", undo: "Taken back. For" }[action];
  const parts = [`${what} ${quoted(text, 50)}:`];
  const after = state.result;
  if (after) {
    const decision = isOut(after) ? OUT : IN;
    parts.push(`its score went from ${score(before.score)} to ${score(after.ood_score)},`,
      isOut(after) === before.out ? `still ${decision.toLowerCase()}.` : `now ${decision.toLowerCase()}.`);
  }
  if (score(before.cut) !== score(state.cut.threshold)) {
    parts.push(`The threshold went from ${score(before.cut)} to ${score(state.cut.threshold)}.`);
  }
  parts.push(...(answer.warnings || []).map((one) => `Note: ${one}.`));
  parts.push(answer.saved ? "The model is saved." : "It holds until the service stops.");
  return parts.join(" ");
}

function buttons() {
  $("teach").hidden = !state.model.learns;
  for (const name of ["refuse", "accept", "undo"]) $(name).ariaDisabled = String(busy);
  $("undo").hidden = lessons === 0;
}

export function setUp() {
  for (const action of ["refuse", "accept", "undo"]) $(action).addEventListener("click", () => teach(action));
  on("model", () => {
    lessons = 0;
    $("taught").textContent = "";
    complain($("teach-error"), "");
    buttons();
  });
}
