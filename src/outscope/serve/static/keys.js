// The dialog for keys.

import { setKey, hasKey } from "./api.js";
import { $, complain } from "./dom.js";

/** Ask for a key; null if none was given. */
function ask({ title, why, error = "" }) {
  const dialog = $("key-dialog");
  $("key-title").textContent = title;
  $("key-why").textContent = why;
  $("key-value").value = "";
  complain($("key-error"), error);
  dialog.showModal();
  $("key-value").focus();
  return new Promise((resolve) => {
    const done = (key) => {
      $("key-form").onsubmit = $("key-cancel").onclick = dialog.oncancel = null;
      dialog.close();
      resolve(key);
    };
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      const key = $("key-value").value.trim();
      if (!/^[\x21-\x7e]+$/.test(key)) {
        complain($("key-error"), key ? "A key has no spaces and no accented letters." : "Type or paste the key.");
        $("key-value").focus();
        return;
      }
      done(key);
    };
    $("key-cancel").onclick = () => done(null);
    dialog.oncancel = (event) => {
      event.preventDefault();
      done(null);
    };
  });
}

/** Ask for the key that every call needs; true if one was given. */
export async function askForKey(error = "") {
  const key = await ask({ title: "API key", why: "Calls to this service carry this key.", error });
  if (key !== null) setKey("user", key);
  return key !== null;
}

/** Do what needs the admin key, asking for it if need be; null if the person gave up. */
export async function asAdmin(action) {
  for (;;) {
    try {
      return await action();
    } catch (error) {
      const barred = (error.status === 401 || error.status === 403) && error.kind !== "no-admin";
      if (!barred) throw error;
      const wrong = hasKey("admin") ? error.message : "";
      setKey("admin", "");
      const key = await ask({
        title: "Admin key", why: "This changes the model for everyone, so it needs the admin key.", error: wrong,
      });
      if (key === null) return null;
      setKey("admin", key);
    }
  }
}
