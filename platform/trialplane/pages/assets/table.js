/* A table of any number of rows, of which only those on the screen are elements. */

const ROW = 28; // pixels
const MOST_COLUMNS = 100;
const OPERATORS = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };

const TALLEST = 430; // pixels
const PRINTED = 500; // rows

/**
 * Rows that can be sorted, filtered, moved through by keys and selected. `source` has their number as `size`, the name of the file
 * to download, `positions` of the rows in the order in which they are shown first, the `trial` of a row, and the rows `selected`.
 */
class Table {
  static all = new Set();
  static made = 0;

  constructor(label, source, columns, { hint = "", onselect = () => {} } = {}) {
    Object.assign(this, { source, onselect, id: Table.made++, isPrinted: false });
    this.order = new Uint32Array();
    this.sorted = { column: null, down: false };
    this.brushed = null;
    this.filter = "";
    this.current = 0;
    this.status = el("span", { class: "count", role: "status" });
    this.body = el("div", { class: "rows", role: "rowgroup" });
    this.spacer = el("div", { class: "spacer" }, this.body);
    this.header = el("div", { class: "row header", role: "row" });
    this.grid = el("div", { class: "grid", role: "grid", tabindex: "0", "aria-label": label,
      onscroll: () => this.schedule(), onkeydown: (event) => this.key(event) }, this.header, this.spacer);
    this.input = el("input", { type: "search", placeholder: `Filter: ${hint}`, "aria-label": `Filter, for example: ${hint}`,
      oninput: (event) => { this.filter = event.target.value; this.refresh(); } });
    this.problem = el("span", { class: "problem", role: "alert" });
    this.element = el("div", {}, hint ? el("div", { class: "controls" }, this.input, this.status, this.problem,
      el("button", { type: "button", onclick: () => this.save() }, "Download CSV")) : null, this.grid);
    new ResizeObserver(() => this.render()).observe(this.grid);
    Table.all.add(this);
    this.renew(columns);
  }

  /** Takes newer rows, and columns that may be others; what the user has chosen stays. */
  renew(columns) {
    const shape = JSON.stringify(columns.map((column) => [column.title, Boolean(column.texts)]));
    if (shape !== this.shape) {
      Object.assign(this, { columns: columns.slice(0, MOST_COLUMNS), all: columns, shape });
      this.sorted.column = columns.find(({ title }) => title === this.sorted.column?.title) ?? null;
      this.header.replaceChildren(...this.columns.map((column) => this.heading(column)));
      this.grid.setAttribute("aria-colcount", this.columns.length);
      // Fixed widths, as each row is a grid of its own.
      const lengths = (column) => column.texts?.slice(0, 50).map((text) => text.length) ?? [9];
      const widths = this.columns.map((column) => column.wide ? 30 : Math.min(27, 1.4 + (column.mark ? 1.2 : 0) + 0.58 * Math.max(4, column.title.length + 2, ...lengths(column))));
      this.grid.style.setProperty("--widths", widths.map((width) => `${width}rem`).join(" "));
      const printed = widths.map((width) => Math.min(width, 14));
      this.grid.style.setProperty("--shares", printed.map((width) => `minmax(0, ${width}fr)`).join(" "));
      this.grid.style.setProperty("--width", printed.reduce((sum, width) => sum + width, 0));
    }
    this.grid.style.setProperty("--height", `${Math.min(TALLEST, (this.source.size + 1) * ROW + 20)}px`); // with a scroll bar
    this.refresh();
  }

  heading(column) {
    const heading = el("button", { type: "button", class: column.texts ? "" : "number", role: "columnheader", "aria-sort": "none",
      onclick: () => this.sort(column) }, column.title);
    heading.title = column.title;
    column.heading = heading;
    return heading;
  }

  sort(column) {
    this.sorted = { column, down: this.sorted.column === column && !this.sorted.down };
    this.refresh();
  }

  /** The rows that match the filter and the brush, in order. */
  refresh() {
    let rows = this.brushed ?? range(this.source.size);
    this.problem.textContent = "";
    for (const part of this.filter.split(",").map((text) => text.trim()).filter(Boolean)) rows = rows.filter(this.test(part));
    const { column, down } = this.sorted;
    const keys = column ? sortKeys(column) : this.source.positions;
    const sign = down ? -1 : 1;
    this.order = Uint32Array.from(rows).sort((a, b) => {
      const x = keys[a], y = keys[b];
      if (Number.isNaN(x)) return Number.isNaN(y) ? a - b : 1; // rows without a value are last in both directions
      if (Number.isNaN(y)) return -1;
      return x === y ? a - b : x < y ? -sign : sign;
    });
    for (const each of this.columns) each.heading.setAttribute("aria-sort", each !== column ? "none" : down ? "descending" : "ascending");
    const { size } = this.source;
    const cut = this.all.length > MOST_COLUMNS ? `, ${MOST_COLUMNS} of ${this.all.length} columns; the CSV has all` : "";
    this.status.textContent = `${this.order.length === size ? "" : `${grouped(this.order.length)} of `}${counted(size, "row")}${cut}`;
    this.current = Math.min(this.current, Math.max(0, this.order.length - 1));
    this.spacer.style.height = `${this.order.length * ROW}px`;
    this.render();
  }

  /** The condition on a row that a part of the filter states: a comparison, or a text in any column. */
  test(part) {
    const match = /^(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)$/.exec(part);
    if (!match) {
      const sought = part.toLowerCase();
      const sets = this.all.filter((column) => column.texts).map((column) => [column.data,
        new Set(column.texts.map((text, i) => text.toLowerCase().includes(sought) ? i + 1 : 0).filter(Boolean))]);
      return (row) => String(this.source.trial(row)) === sought || sets.some(([data, codes]) => codes.has(data[row]));
    }
    const [, name, operator, text] = match;
    const lower = name.toLowerCase();
    const column = this.all.find((each) => each.title === name) ?? this.all.find((each) => each.title.toLowerCase() === lower);
    if (!column) {
      this.problem.textContent = `no column ${name}`;
      return () => true;
    }
    const compare = OPERATORS[operator];
    if (column.texts) return (row) => column.value(row) !== null && compare(column.value(row), text);
    const number = Number(text);
    return text === "" ? () => true : (row) => column.has(row) && compare(column.isExact ? column.data[row] : Number(column.data[row].toPrecision(7)), number);
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.render(); });
  }

  render() {
    const first = this.isPrinted ? 0 : Math.max(0, Math.floor(this.grid.scrollTop / ROW) - 3);
    const last = Math.min(this.order.length, this.isPrinted ? PRINTED : first + Math.ceil(this.grid.clientHeight / ROW) + 7);
    this.body.style.transform = `translateY(${first * ROW}px)`;
    this.grid.setAttribute("aria-rowcount", this.order.length + 1);
    this.body.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, i) => this.row(first + i)));
    if (this.isPrinted && last < this.order.length) this.body.append(note(`${counted(this.order.length - last, "more row")} on the page, and in its CSV`));
  }

  row(position) {
    const row = this.order[position];
    const selected = this.source.selected.has(row);
    const cells = this.columns.map((column) => el("span", { role: "gridcell", class: column.texts ? "" : "number" }, column.mark ? badge(column.short(row)) : column.short(row)));
    return el("div", { class: `row${position === this.current ? " current" : ""}`, role: "row", id: `row-${this.id}-${position}`, "aria-rowindex": position + 2,
      "aria-selected": selected, onclick: () => { this.current = position; this.toggle(row); } }, cells);
  }

  toggle(row) {
    if (!this.source.selected.delete(row)) this.source.selected.add(row);
    this.render();
    this.onselect(row);
  }

  key(event) {
    if (event.target !== this.grid) return; // a heading, which sorts
    const page = Math.floor(this.grid.clientHeight / ROW) - 2;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") {
      if (this.order.length) this.toggle(this.order[this.current]);
    } else if (event.key in steps) {
      this.current = Math.max(0, Math.min(this.order.length - 1, this.current + steps[event.key]));
      const top = this.current * ROW, room = this.grid.clientHeight - 2 * ROW;
      if (top < this.grid.scrollTop) this.grid.scrollTop = top;
      if (top > this.grid.scrollTop + room) this.grid.scrollTop = top - room;
      this.render();
    } else return;
    this.grid.setAttribute("aria-activedescendant", `row-${this.id}-${this.current}`);
    event.preventDefault();
  }

  /** Keeps to rows that a chart chose; null for all. */
  brush(rows) {
    if (rows === this.brushed) return;
    this.brushed = rows;
    this.refresh();
  }

  save() {
    const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const lines = [this.all.map((column) => quoted(column.title)).join(",")];
    for (const row of this.order) lines.push(this.all.map((column) => quoted(column.text(row))).join(","));
    download(`${this.source.name}.csv`, "text/csv", `${lines.join("\r\n")}\r\n`);
  }
}

for (const isPrinted of [true, false]) {
  addEventListener(isPrinted ? "beforeprint" : "afterprint", () => {
    for (const table of Table.all) {
      table.isPrinted = isPrinted;
      if (table.element.isConnected) table.render();
      else Table.all.delete(table);
    }
  });
}

const badge = (state) => el("span", { class: "state", "data-state": state }, state);

/** The columns of the table of trials, with titles that are unique. */
function tableColumns(run) {
  const fixed = ["trial", "state", "attempt", "seconds", "step", "rung", "failure", "message", "node"].map((name) => run.column("trials", name));
  const used = fixed.filter((column) => ["trial", "state"].includes(column.name) || (column.name === "attempt" ? column.data.some((n) => n > 1) : range(run.size).some((row) => column.has(row))));
  const head = used.filter((column) => ["trial", "state", "attempt"].includes(column.name));
  const tail = used.filter((column) => !head.includes(column));
  const objectives = run.metrics.filter((column) => run.facts.objectives.some((objective) => objective.metric === column.name));
  const others = run.metrics.filter((column) => !objectives.includes(column));
  const taken = new Set();
  return [...head, ...objectives, ...run.params, ...others, ...tail].map((column) => {
    let title = column.category === "" && column.name === "trial" ? run.facts.noun : column.name;
    if (taken.has(title)) title = `${column.category || "trial"}.${title}`;
    taken.add(title);
    return Object.assign(column, { title, mark: column.category === "" && column.name === "state", wide: column.category === "" && column.name === "message" });
  });
}

/** A number for each row by which a column is sorted: that of a text is its position in the alphabet. */
function sortKeys(column) {
  if (!column.texts) return column.data;
  const order = column.texts.map((text, code) => [text, code + 1]).sort((a, b) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
  const positions = new Float32Array(order.length + 1).fill(NaN);
  order.forEach(([, code], position) => { positions[code] = position; });
  return Float32Array.from(column.data, (code) => positions[code]);
}
