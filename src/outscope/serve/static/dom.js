// Elements, words and numbers. Texts only ever become text nodes.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Show an error in words at its place, or take it away. */
export function complain(place, words) {
  place.textContent = words || "";
  place.hidden = !words;
}

/** Have a screen reader say something, even if it is the same as before. */
export function say(place, words) {
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = words; });
}

export const IN = "In scope";
export const OUT = "Out of scope";

/** The mark that stands beside a decision: a round one or a diamond. */
export const dot = (out) => make("i", { className: `dot ${out ? "out" : "in"}`, ariaHidden: "true" });

export const number = (value) => value.toLocaleString("en");
export const score = (value) => value.toFixed(3);
export const percent = (share) => `${Number((100 * share).toPrecision(2))} %`;
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
/** A class as people read it. */
export const named = (label) => String(label).replaceAll("_", " ");
export const quoted = (text, most = 80) =>
  `“${text.length > most ? `${text.slice(0, most).trimEnd()} …` : text}”`;

/** Call a function once things have been quiet for a while. */
export function debounced(wait, action) {
  let timer = 0;
  const later = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(action, wait, ...given);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
