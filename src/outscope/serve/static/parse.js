// Files of texts → rows, and rows → a CSV file.

/** What is in a file: its columns by name, and its rows as lists of cells. */
export function parse(name, content) {
  const ending = name.toLowerCase().split(".").pop();
  const text = content.replace(/^\ufeff/, "");
  if (ending === "csv" || ending === "tsv") return csv(text, ending === "tsv" ? "\t" : null);
  if (ending === "jsonl" || ending === "ndjson") return jsonl(text);
  if (ending === "txt") return lines(text);
  throw new Error(`${name} is a .${ending} file; choose a .txt, .csv or .jsonl file.`);
}

function lines(text) {
  const rows = text.split(/\r\n|\n|\r/).map((line) => [line]);
  return { columns: ["text"], rows };
}

/** RFC 4180, with commas, semicolons or tabs. The first row has the names. */
function csv(text, given) {
  const separator = given || guess(text);
  const rows = [];
  let row = [];
  let cell = "";
  let inside = false;
  for (let i = 0; i < text.length; i += 1) {
    const sign = text[i];
    if (inside) {
      if (sign !== '"') cell += sign;
      else if (text[i + 1] === '"') {
        cell += '"';
        i += 1;
      } else inside = false;
    } else if (sign === '"' && cell === "") inside = true;
    else if (sign === separator) {
      row.push(cell);
      cell = "";
    } else if (sign === "\n" || sign === "\r") {
      if (sign === "\r" && text[i + 1] === "\n") i += 1;
      row.push(cell);
      rows.push(row);
      row = [];
      cell = "";
    } else cell += sign;
  }
  if (inside) throw new Error(`A quotation mark that opens in row ${rows.length + 1} is never closed.`);
  if (cell !== "" || row.length) rows.push([...row, cell]);
  const [columns = [], ...rest] = rows.filter((one) => one.length > 1 || one[0] !== "");
  return { columns: columns.map((one, i) => one.trim() || `column ${i + 1}`), rows: rest };
}

function guess(text) {
  const first = text.slice(0, 10000).replace(/"[^"]*"/g, "").split(/\r|\n/)[0];
  const count = (sign) => first.split(sign).length;
  return [",", ";", "\t"].sort((one, other) => count(other) - count(one))[0];
}

/** A JSON object, or a text, on each line. */
function jsonl(text) {
  const objects = [];
  for (const [i, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    let value;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(`Line ${i + 1} is not JSON.`);
    }
    if (typeof value === "string") value = { text: value };
    if (value === null || typeof value !== "object" || Array.isArray(value)) {
      throw new Error(`Line ${i + 1} is neither an object nor a text.`);
    }
    objects.push(value);
  }
  const columns = [...new Set(objects.flatMap((one) => Object.keys(one)))];
  const cell = (value) => (value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return { columns, rows: objects.map((one) => columns.map((name) => cell(one[name]))) };
}

/** The column that most likely has the texts. */
export function likeliest({ columns, rows }) {
  const usual = columns.findIndex((name) => /^(text|texts|query|question|message|utterance|sentence|content|prompt|body)$/i.test(name));
  if (usual >= 0) return usual;
  const some = rows.slice(0, 50);
  const length = columns.map((_, i) => some.reduce((sum, row) => sum + (row[i] || "").length, 0));
  return Math.max(0, length.indexOf(Math.max(...length)));
}

/** A CSV file. Cells that a spreadsheet would run as a formula get an apostrophe before them. */
export function toCsv(columns, rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
