/* The content of the page: facts as plain values, and columns as typed arrays over one block of bytes. */

const ARRAYS = { f4: Float32Array, f8: Float64Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

/** Decodes base64. It is also the source of a worker, so it uses nothing of this file. */
function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text).buffer;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes.buffer;
}

/** Decodes a block in a worker, so that the page stays responsive; a small one, or without workers, here. */
function decode(text) {
  if (text.length < 500_000) return Promise.resolve(decodeBase64(text));
  return new Promise((resolve) => {
    const source = `onmessage = (e) => { const b = (${decodeBase64})(e.data); postMessage(b, [b]); };`;
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const here = () => resolve(decodeBase64(text));
    try {
      const worker = new Worker(address);
      worker.onmessage = (event) => { resolve(event.data); worker.terminate(); URL.revokeObjectURL(address); };
      worker.onerror = here;
      worker.postMessage(text);
    } catch {
      here();
    }
  });
}

/** A column: `data` are numbers, or codes of `texts` (0 is none). */
class Column {
  /** `old` is the column of the version before, if the page has it: the entry tells how many of its values and texts are kept. */
  constructor(entry, buffer, old) {
    const { name, category, kept = 0, kept_texts: keptTexts = 0 } = entry, newer = new ARRAYS[entry.type](buffer, entry.offset, entry.length);
    Object.assign(this, { name, category, texts: keptTexts ? [...old.texts.slice(0, keptTexts), ...entry.texts] : entry.texts, log: Boolean(entry.log) });
    this.data = newer;
    if (kept) {
      this.data = new ARRAYS[entry.type](kept + entry.length);
      this.data.set(old.data.subarray(0, kept));
      this.data.set(newer, kept);
    }
    this.isExact = entry.type !== "f4";
  }

  /** A column of values, which are numbers or null, or else texts; "" is none. `more` are fields beside it, such as another `short`. */
  static of(title, values, more = {}) {
    const isNumeric = values.every((value) => value === null || typeof value === "number");
    const texts = isNumeric ? undefined : [...new Set(values.filter((value) => value !== null && value !== "").map(String))];
    const codes = new Map(texts?.map((text, i) => [text, i + 1]));
    const data = isNumeric ? Float64Array.from(values, (value) => value ?? NaN) : Uint32Array.from(values, (value) => codes.get(String(value)) ?? 0);
    return Object.assign(Object.create(Column.prototype), { name: title, title, category: "", texts, data, log: false, isExact: true, ...more });
  }

  /** The value in a row: a number, a text or null. */
  value(row) {
    const stored = this.data[row];
    if (this.texts) return stored ? this.texts[stored - 1] : null;
    return Number.isNaN(stored) ? null : stored;
  }

  /** The value in a row as text, with as many digits as are stored. */
  text(row) {
    const value = this.value(row);
    return typeof value === "number" ? (this.isExact ? String(value) : String(Number(value.toPrecision(7)))) : value ?? "";
  }

  /** The value in a row in a few characters. */
  short(row) {
    const value = this.value(row);
    return typeof value === "number" ? short(value) : value ?? "";
  }

  /** Whether a chart can place the value in a row; of numbers beyond these bounds there is no mean and no scale. */
  isPlaced(row) {
    return this.texts ? this.data[row] !== 0 : Math.abs(this.data[row]) < 1e150 && (!this.log || this.data[row] > 0);
  }

  has(row) {
    return this.texts ? this.data[row] !== 0 : !Number.isNaN(this.data[row]);
  }
}

/** A number in a few characters. */
function short(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? value.toExponential(3).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
}

const isNumber = (text) => /^-?[\d.]+(e[+-]?\d+)?$/i.test(text);

/** A text of a value in a few characters, if it is a number. */
const brief = (text) => (isNumber(text) ? short(Number(text)) : String(text));

function duration(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return "";
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
}

/** Whole numbers with separators: 50,000. */
const grouped = (number) => number.toLocaleString("en-US");

/** A number of things: 1 row, 2 rows. */
const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;

/** The numbers 0 to n - 1. */
const range = (n) => Uint32Array.from({ length: n }, (_, i) => i);

/** A run: its facts, and its columns by table and name. Names of parameters and metrics are kept apart from fixed names. */
class Run {
  /** `previous` is the same run in the version before, of which newer content is a part. */
  constructor(facts, buffer, previous) {
    this.facts = facts;
    this.tables = new Map();
    for (const entry of facts.columns) {
      const column = new Column(entry, buffer, previous?.tables.get(entry.table)?.find(({ name, category }) => name === entry.name && category === entry.category));
      if (!this.tables.has(entry.table)) this.tables.set(entry.table, []);
      this.tables.get(entry.table).push(column);
    }
    this.size = this.column("trials", "trial").data.length;
    this.params = this.tables.get("trials").filter((column) => column.category === "param");
    this.metrics = this.tables.get("trials").filter((column) => column.category === "metric");
    this.objectives = facts.objectives.map((objective) => {
      const column = this.metrics.find((metric) => metric.name === objective.metric);
      return { ...objective, column, sign: objective.direction === "maximize" ? -1 : 1 };
    });
    const feasible = this.column("trials", "feasible").data;
    this.complete = this.rowsOf("COMPLETE");
    this.feasible = this.complete.filter((row) => feasible[row]);
    const ranks = this.column("trials", "rank").data;
    this.byRank = new Uint32Array(this.size);
    for (let row = 0; row < this.size; row++) this.byRank[ranks[row]] = row;
    const isComplete = new Uint8Array(this.size);
    for (const row of this.complete) isComplete[row] = 1;
    this.ranked = this.byRank.filter((row) => isComplete[row]); // those with a result
    this.valued = facts.rungs.length ? this.reached() : this.ranked;
    this.selected = new Set();
  }

  /** The trials with a value, the best first: with promotion, most are paused or dropped at a rung, and have that of their last report. */
  reached() {
    const others = ["PAUSED", "PRUNED", "RUNNING"].flatMap((state) => [...this.rowsOf(state)]);
    const [{ column, sign }] = this.objectives;
    return Uint32Array.from([...this.ranked, ...others].filter((row) => column?.has(row))).sort((a, b) => sign * (column.data[a] - column.data[b]) || a - b);
  }

  /** A fixed column of a table. */
  column(table, name) {
    return this.tables.get(table).find((column) => column.name === name && column.category === "");
  }

  /** The rows of trials in a state. */
  rowsOf(state) {
    const { data, texts } = this.column("trials", "state");
    const code = texts.indexOf(state) + 1;
    return code ? range(this.size).filter((row) => data[row] === code) : new Uint32Array();
  }

  get name() {
    return this.facts.run;
  }

  /** The position of each row among all: the best first, or iterations in their order. */
  get positions() {
    return this.column("trials", this.facts.kind === "collect" ? "trial" : "rank").data;
  }

  trial(row) {
    return this.column("trials", "trial").data[row];
  }

  state(row) {
    return this.column("trials", "state").value(row);
  }

  /** The row of a trial, or undefined. */
  rowOf(trial) {
    if (!this.rows) this.rows = new Map(Array.from(this.column("trials", "trial").data, (number, row) => [number, row]));
    return this.rows.get(trial);
  }

  /** The first `best` of `rows`, which are the best first, and `others` of the rest, spread evenly. */
  sample(best, others, rows = this.ranked) {
    const rest = rows.slice(best);
    const step = Math.max(1, rest.length / others);
    const spread = Array.from({ length: Math.min(others, rest.length) }, (_, i) => rest[Math.floor(i * step)]);
    return [...rows.slice(0, best), ...spread];
  }

  /** The best value so far after each of `rows`: {x: row, y: value} at each improvement. */
  running(rows, objective) {
    const improvements = [];
    let best = Infinity;
    for (const row of rows) {
      const loss = objective.sign * objective.column.data[row];
      if (loss < best) {
        best = loss;
        improvements.push({ row, value: objective.column.data[row] });
      }
    }
    return improvements;
  }
}
