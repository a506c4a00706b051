// Calls to the service: keys, errors in words, patience when it is busy.

import { emit } from "./state.js";

const keys = { user: "", admin: "" }; // in memory only

export const setKey = (kind, key) => { keys[kind] = key; };
export const hasKey = (kind) => keys[kind] !== "";

/** Something that went wrong, in words for a person. */
export class Trouble extends Error {
  constructor(words, { status = 0, kind = "", wait = null } = {}) {
    super(words);
    Object.assign(this, { status, kind, wait });
  }
}

const WORDS = {
  "no-key": "This service needs an API key.",
  "wrong-key": "The service does not know this key.",
  "no-admin": "Changes are switched off on this service. Whoever runs it can switch them on with an admin key.",
  "needs-admin": "This key may judge texts, but not change the model. That needs an admin key.",
  busy: "The service is busy.",
  timeout: "The service took too long to answer.",
  "not-ready": "The service is starting or stopping.",
};

/** Ask the service. Without a body it is a GET. */
export async function call(path, { body, admin = false, signal } = {}) {
  const headers = { Accept: "application/json" };
  const key = (admin && keys.admin) || keys.user || (admin ? "" : keys.admin);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    emit("unreachable");
    throw new Trouble("The service does not answer. Is it still running?", { kind: "unreachable" });
  }
  emit("reachable");
  if (answer.ok) return answer.json();
  if (answer.status === 401 && !admin) emit("locked");
  throw await trouble(answer);
}

async function trouble(answer) {
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // Something between us and the service answered; its status has to do.
  }
  const kind = String(told.type || "").split(":").pop();
  const wait = Number(answer.headers.get("Retry-After")) || null;
  const words = WORDS[kind] || sentence(told.detail || `The service answered with status ${answer.status}`);
  return new Trouble(words, { status: answer.status, kind, wait });
}

function sentence(words) {
  const start = words[0].toUpperCase() + words.slice(1);
  return /[.!?]$/.test(start) ? start : `${start}.`;
}

/** Ask, and ask again for as long as the service is busy. `waiting` is told the seconds. */
export async function patiently(path, options, waiting = () => {}) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await call(path, options);
    } catch (error) {
      const busy = error.status === 429 || (error.status === 503 && tries < 4);
      if (!busy) throw error;
      const seconds = error.wait || Math.min(8, tries);
      waiting(seconds);
      await pause(1000 * seconds, options.signal);
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("cancelled", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
  });
}
