// Starts the page: models, keys, theme, and what happens when the service is away.

import { call } from "./api.js";
import { $, make, plural } from "./dom.js";
import * as files from "./files.js";
import * as judge from "./judge.js";
import { askForKey } from "./keys.js";
import * as map from "./map.js";
import * as rate from "./rate.js";
import { emit, on, state } from "./state.js";
import * as teach from "./teach.js";

const RETRY = 3000;
const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

/** Ask what is served. Where a key is needed, ask for it. */
async function start() {
  try {
    state.models = (await call("v1/models")).models;
  } catch (error) {
    if (error.status === 401) return barred(error);
    if (error.kind !== "unreachable") banner(error.message, "Try again", start);
    return undefined;
  }
  banner("");
  const select = $("model");
  select.replaceChildren(...state.models.map((one) => make("option", { value: one.model }, one.model)));
  $("pick-model").hidden = state.models.length < 2;
  return choose(state.models[0].model);
}

async function barred(error) {
  banner(error.message, "Enter the key", enter);
  if (error.kind === "wrong-key") await enter(error.message);
}

async function enter(words) {
  if (await askForKey(typeof words === "string" ? words : "")) start();
}

async function choose(name) {
  state.model = state.models.find((one) => one.model === name);
  state.fpr = state.cut = state.result = null;
  emit("result");
  about();
  await rate.refresh();
  if (state.cut) emit("model");
}

function about() {
  const { model, kind, labels, atoms } = state.model;
  const parts = [
    state.models.length < 2 ? model : null,
    kind === "texts" ? null : "a model of vectors",
    labels ? plural(labels.length, "class", "classes") : null,
    atoms === null ? null : plural(atoms, "stored vector"),
  ];
  $("about").textContent = parts.filter(Boolean).join(" · ");
}

/** A model was taught or replaced: its threshold, and what is known of it, may be others. */
async function changed(detail) {
  if (detail.model === state.model.model) {
    await rate.refresh();
    try {
      const fresh = await call(`v1/models/${encodeURIComponent(detail.model)}`);
      state.models = state.models.map((one) => (one.model === fresh.model ? fresh : one));
      state.model = state.models.find((one) => one.model === state.model.model);
      about();
    } catch {
      // What is shown of the model stays as it was.
    }
  }
  detail.resolve?.();
}

function banner(words, action, doing) {
  const place = $("banner");
  place.hidden = !words;
  const button = action ? make("button", { type: "button", onclick: () => doing() }, action) : null;
  place.replaceChildren(...[words, button].filter(Boolean));
}

let away = false;

function unreachable() {
  if (away) return;
  away = true;
  banner("The service does not answer. Trying again every few seconds …");
  const again = setInterval(async () => {
    try {
      await call("health/live");
    } catch {
      return;
    }
    clearInterval(again);
    away = false;
    banner("");
    if (state.model) judge.judge();
    else start();
  }, RETRY);
}

function theme() {
  const button = $("theme");
  const chosen = () => document.documentElement.dataset.theme || "system";
  const show = () => {
    button.textContent = SIGNS[chosen()];
    button.ariaLabel = `Theme: ${chosen()}`;
    button.title = button.ariaLabel;
    map.recolour();
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("outscope-theme", next);
    } catch {
      // Storage may be off; the theme holds until the page is closed.
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

judge.setUp();
rate.setUp();
teach.setUp();
map.setUp();
files.setUp();
theme();
on("changed", changed);
on("unreachable", unreachable);
on("locked", () => { $("key").hidden = false; });
$("model").addEventListener("change", () => choose($("model").value));
$("key").addEventListener("click", () => enter());
start();
