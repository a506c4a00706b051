// What the page knows, and who is told when it changes.

export const state = {
  models: [],
  model: null, // one of them
  cut: null, // what /v1/threshold says at the chosen rate
  fpr: null, // the rate chosen on the page; null is the model's own
  text: "",
  result: null, // of the text
  rows: [], // of the file
};

const hub = new EventTarget();

/** Be told: "model", "cut", "result", "rows", "changed" (a model was taught or replaced). */
export const on = (name, action) => hub.addEventListener(name, (event) => action(event.detail));
export const emit = (name, detail) => hub.dispatchEvent(new CustomEvent(name, { detail }));

/** The decision, at the threshold that the page shows. */
export const isOut = (result) => result.ood_score > state.cut.threshold;

/** The class of a result, whatever its decision; null without classes. */
export function classOf(result) {
  if (result.closest !== null && result.closest !== undefined) return result.closest;
  return result.is_ood ? null : result.label;
}
