// The judged file as a table: filtered, sorted, in pages, and as CSV.

import { $, IN, OUT, dot, make, named, number, plural, score } from "./dom.js";
import { tryText } from "./judge.js";
import { toCsv } from "./parse.js";
import { classOf, emit, isOut, on, state } from "./state.js";

const PAGE = 100;
const LONG = 400; // characters of a text that are shown
const OFTEN = 300; // milliseconds between two refreshes while texts are judged, or more:
const TIMES = 10; // so many times as long as a refresh takes

const view = { show: "all", contains: "", sort: "score", down: true, page: 0 };
let next = 0;
let order = null;

/** Show the rows as they are now; not too often, unless it is the end. */
export function refresh(atOnce = false) {
  const start = performance.now();
  if (!atOnce && start < next) return;
  emit("rows");
  const end = performance.now();
  next = end + Math.max(OFTEN, TIMES * (end - start));
}

const KEYS = {
  row: (row) => row.row,
  score: (row) => (row.result ? row.result.ood_score : -Infinity),
  label: (row) => (row.result && !isOut(row.result) ? String(classOf(row.result) ?? "") : "\uffff"),
};

/** Rows that the filters let through, in order. */
function chosen() {
  const wanted = view.contains.toLowerCase();
  return ordered()
    .filter((row) => view.show === "all" || (row.result && isOut(row.result) === (view.show === "flagged")))
    .filter((row) => !wanted || row.text.toLowerCase().includes(wanted));
}

/** All rows in order; kept while a threshold moves, unless the order is that of decisions. */
function ordered() {
  if (order && view.sort !== "label") return order;
  const key = KEYS[view.sort];
  const side = view.down ? -1 : 1;
  order = state.rows
    .map((row) => [key(row), row])
    .sort(([a, one], [b, other]) => (a < b ? -side : a > b ? side : one.row - other.row))
    .map(([, row]) => row);
  return order;
}

function show() {
  const { rows } = state;
  $("table-box").hidden = rows.length === 0 || state.model.kind !== "texts";
  if (!rows.length || !state.cut) return;
  const judged = rows.filter((row) => row.result);
  const flagged = judged.filter((row) => isOut(row.result)).length;
  $("n-all").textContent = number(rows.length);
  $("n-flagged").textContent = number(flagged);
  $("n-kept").textContent = number(judged.length - flagged);
  const found = chosen();
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  view.page = Math.min(view.page, pages - 1);
  const start = view.page * PAGE;
  const shown = found.slice(start, start + PAGE);
  $("rows").replaceChildren(...(shown.length ? shown.map(line) : [empty()]));
  $("shown").textContent = pages > 1 ? `${number(start + 1)} to ${number(start + shown.length)} of ${number(found.length)}` : plural(found.length, "row");
  $("earlier").hidden = $("later").hidden = pages === 1;
  $("earlier").disabled = view.page === 0;
  $("later").disabled = view.page === pages - 1;
  $("download").textContent = `Download ${plural(found.length, "row")} as CSV`;
  $("download").disabled = !found.length;
  const open = rows.some((row) => !row.result && !row.problem);
  const old = judged.some((row) => row.version !== state.cut.version);
  $("again").hidden = !$("going").hidden || !(open || old);
  $("again").textContent = open ? "Judge the rest" : "Judge again with the changed model";
}

function line(row) {
  const text = row.text.length > LONG ? `${row.text.slice(0, LONG)} …` : row.text;
  const words = cell("words", make("button", { type: "button", title: "Look at this text above", onclick: () => tryText(row.text) }, text));
  const number = cell("number", String(row.row));
  if (!row.result) {
    const why = cell("class", row.problem || "waiting");
    why.colSpan = 3;
    return make("tr", { role: "row" }, number, why, words);
  }
  const out = isOut(row.result);
  const label = out ? null : classOf(row.result);
  return make("tr", { role: "row" },
    number,
    cell(`what ${out ? "out" : ""}`, dot(out), out ? OUT : IN),
    cell("score", score(row.result.ood_score)),
    cell("class", label === null ? "–" : named(label)),
    words);
}

// On a phone rows are shown as blocks, which would lose their roles.
const cell = (className, ...children) => make("td", { className, role: "cell" }, ...children);

function empty() {
  const only = cell("class", "No row is like that.");
  only.colSpan = 5;
  return make("tr", { role: "row" }, only);
}

/** The rows that are shown, with their own columns and ours. */
function download() {
  const { columns, name } = state.file;
  const ours = ["ood_score", "p_value", "is_ood", "label", "nearest"].map((one) => (columns.includes(one) ? `outscope_${one}` : one));
  const rows = chosen().map((row) => {
    const cells = columns.map((_, i) => row.cells[i] ?? "");
    if (!row.result) return [...cells, ...ours.map(() => null)];
    const out = isOut(row.result);
    const { ood_score: value, p_value: chance, nearest } = row.result;
    return [...cells, value, chance, out, out ? "out of scope" : classOf(row.result), nearest[0] ?? null];
  });
  const url = URL.createObjectURL(new Blob(["\ufeff", toCsv([...columns, ...ours], rows)], { type: "text/csv" }));
  make("a", { href: url, download: `${name.replace(/\.\w+$/, "")}-judged.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function sortBy(head) {
  const name = head.dataset.sort;
  view.down = view.sort === name ? !view.down : name === "score";
  view.sort = name;
  view.page = 0;
  order = null;
  for (const other of document.querySelectorAll("th[data-sort]")) other.ariaSort = "none";
  head.ariaSort = view.down ? "descending" : "ascending";
  show();
}

function turn(by) {
  view.page += by;
  show();
  document.querySelector(".table-wrap").scrollTop = 0;
}

export function setUp() {
  on("rows", () => {
    order = null;
    show();
  });
  on("cut", show);
  for (const head of document.querySelectorAll("th[data-sort]")) head.firstElementChild.addEventListener("click", () => sortBy(head));
  for (const radio of document.querySelectorAll('input[name="show"]')) {
    radio.addEventListener("change", () => {
      view.show = radio.value;
      view.page = 0;
      show();
    });
  }
  $("contains").addEventListener("input", () => {
    view.contains = $("contains").value;
    view.page = 0;
    show();
  });
  $("earlier").addEventListener("click", () => turn(-1));
  $("later").addEventListener("click", () => turn(1));
  $("download").addEventListener("click", download);
}
