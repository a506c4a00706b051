// A file: chosen, judged in batches, with progress and a way to stop.

import { patiently } from "./api.js";
import { $, complain, make, number, plural, say } from "./dom.js";
import { likeliest, parse } from "./parse.js";
import { emit, on, state } from "./state.js";
import * as table from "./table.js";

const BATCH = 64;
const MOST_BYTES = 64 * 2 ** 20;
const PREVIEW = 3;

let file = null; // { name, columns, rows }
let running = null; // an AbortController while texts are judged

async function open(chosen) {
  if (!chosen) return;
  stop();
  complain($("file-error"), "");
  try {
    if (chosen.size > MOST_BYTES) throw new Error(`${chosen.name} has more than 64 MB. Files of that size are for the command line: outscope score.`);
    file = { name: chosen.name, ...parse(chosen.name, decode(await chosen.arrayBuffer(), chosen.name)) };
    if (!file.rows.some((row) => row.some((cell) => cell.trim()))) throw new Error(`${chosen.name} has no texts.`);
  } catch (error) {
    file = null;
    $("chosen").hidden = true;
    $("drop").hidden = false;
    complain($("file-error"), error.message);
    return;
  }
  $("drop").hidden = true;
  $("chosen").hidden = false;
  state.rows = [];
  emit("rows");
  $("file-name").textContent = `${file.name}: ${plural(file.rows.length, "row")}`;
  $("pick-column").hidden = file.columns.length < 2;
  $("column").replaceChildren(...file.columns.map((name, i) => make("option", { value: String(i) }, name)));
  $("column").value = String(likeliest(file));
  preview();
  $("start").focus();
}

function decode(bytes, name) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${name} is not UTF-8 text. Save it as UTF-8 and choose it again.`);
  }
}

const texts = () => {
  const column = Number($("column").value);
  return file.rows
    .map((cells, i) => ({ row: i + 1, cells, text: cells[column] || "", result: null, problem: null, version: null }))
    .filter((row) => row.text.trim());
};

function preview() {
  const rows = texts();
  $("preview").replaceChildren(...rows.slice(0, PREVIEW).map((row) => make("li", {}, row.text.slice(0, 300))));
  if (!rows.length) $("preview").replaceChildren(make("li", { className: "soft" }, "This column has no texts."));
  $("start").textContent = `Judge ${plural(rows.length, "text")}`;
  $("start").disabled = !rows.length;
}

/** Judge what has not been judged yet. */
async function run() {
  const mine = (running = new AbortController());
  const model = state.model.model;
  const waiting = state.rows.filter((row) => !row.result && !row.problem);
  complain($("file-error"), "");
  $("chosen").hidden = true;
  $("going").hidden = false;
  $("cancel").focus();
  progress();
  try {
    for (let start = 0; start < waiting.length; start += BATCH) {
      await judge(waiting.slice(start, start + BATCH), model, mine.signal);
      progress();
      table.refresh();
    }
    finish(`${plural(state.rows.length, "text")} judged.`);
  } catch (error) {
    if (mine !== running) return;
    const done = state.rows.filter((row) => row.result).length;
    const where = `${number(done)} of ${number(state.rows.length)} texts are judged.`;
    if (error.name === "AbortError") finish(`Cancelled. ${where}`);
    else {
      finish("");
      complain($("file-error"), `${error.message} ${where}`);
    }
  }
}

/** A batch. One that is refused is halved, until the text that is the reason stands alone. */
async function judge(rows, model, signal) {
  const body = { model, n_atoms: 1, texts: rows.map((row) => row.text) };
  try {
    const answer = await patiently("v1/explain", { body, signal }, (seconds) => progress(`The service is busy; going on in ${seconds} s`));
    rows.forEach((row, i) => Object.assign(row, { result: answer.results[i], version: answer.version }));
    if (answer.version !== state.cut.version) emit("changed", answer);
  } catch (error) {
    if (error.status !== 413 && error.status !== 422) throw error;
    if (rows.length === 1) {
      rows[0].problem = error.message;
      return;
    }
    const half = Math.ceil(rows.length / 2);
    await judge(rows.slice(0, half), model, signal);
    await judge(rows.slice(half), model, signal);
  }
}

function progress(words) {
  const done = state.rows.filter((row) => row.result || row.problem).length;
  $("progress").max = state.rows.length;
  $("progress").value = done;
  $("progress-words").textContent = words || `${number(done)} of ${number(state.rows.length)}`;
}

function finish(words) {
  const held = document.activeElement === $("cancel");
  running = null;
  $("going").hidden = true;
  $("drop").hidden = false;
  say($("file-said"), words);
  table.refresh(true);
  if (held) document.querySelector('input[name="show"]:checked').focus({ preventScroll: true });
}

function stop() {
  running?.abort();
  running = null;
  $("going").hidden = true;
}

/** Judge again what was judged by an older model, or go on where it stopped. */
function again() {
  for (const row of state.rows) {
    if (row.version !== state.cut.version) Object.assign(row, { result: null, problem: null });
  }
  table.refresh(true);
  run();
}

function drops() {
  const zone = document.body;
  let depth = 0;
  const files = (event) => event.dataTransfer?.types.includes("Files");
  const over = (by) => {
    depth = Math.max(0, depth + by);
    zone.classList.toggle("over", depth > 0);
  };
  zone.addEventListener("dragenter", (event) => files(event) && over(1));
  zone.addEventListener("dragleave", (event) => files(event) && over(-1));
  zone.addEventListener("dragover", (event) => files(event) && event.preventDefault());
  zone.addEventListener("drop", (event) => {
    if (!files(event)) return;
    event.preventDefault();
    over(-depth);
    $("files").scrollIntoView({ block: "nearest" });
    open(event.dataTransfer.files[0]);
  });
}

export function setUp() {
  table.setUp();
  drops();
  $("file").addEventListener("change", () => {
    open($("file").files[0]);
    $("file").value = ""; // so that the same file can be chosen again
  });
  $("column").addEventListener("change", preview);
  $("chosen").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!state.cut) return complain($("file-error"), "There is no model to judge with yet; see the top of the page.");
    state.rows = texts();
    state.file = { name: file.name, columns: file.columns };
    table.refresh(true);
    return run();
  });
  $("forget").addEventListener("click", () => {
    $("chosen").hidden = true;
    $("drop").hidden = false;
    $("file").focus();
  });
  $("cancel").addEventListener("click", () => running?.abort());
  $("again").addEventListener("click", again);
  on("model", () => {
    stop();
    $("files").hidden = state.model.kind !== "texts";
    for (const row of state.rows) Object.assign(row, { result: null, problem: null, version: null });
    table.refresh(true);
  });
}
