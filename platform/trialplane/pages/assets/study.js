/*
 * The sections of a run. A chart asks for its data when it is drawn. When a run has newer content, a section in which the user
 * can choose something stays: its `renew`, if it has one, updates what its charts do not draw.
 */

const BINNED_FROM = 10_000; // points of a pair of parameters
const BARS = 1500; // attempts of which a timeline draws bars; more are merged to a number of busy slots
const CURVES = 250; // curves that are drawn without quantiles
const LINES = 12; // ranks that are drawn as lines

/** The sections of a run, and whether it has each. */
const SECTIONS = [
  [summary, () => true],
  [commands, () => true],
  [history, (run) => isStudy(run) && run.size > 0],
  [importance, (run) => isStudy(run) && (run.facts.importances.length > 0 || run.facts.no_importances)],
  [parallel, (run) => isStudy(run) && run.params.length > 0 && run.valued.length > 1],
  [slice, (run) => isStudy(run) && run.params.length > 0 && run.valued.length > 0],
  [contour, (run) => isStudy(run) && run.params.length > 1 && run.valued.length > 3],
  [pareto, (run) => run.objectives.length > 1 && run.complete.length > 0],
  [constraints, (run) => run.facts.constraints.length > 0 && run.complete.length > 0],
  [iterations, (run) => run.facts.kind === "collect" && run.metrics.length > 0 && run.size > 0],
  [workers, (run) => run.facts.workers.length > 0],
  [lineage, (run) => run.column("segments", "trial").data.length > 0],
  [rungs, (run) => run.facts.rungs.some((rung) => rung.reached > 0)],
  [curves, (run) => run.facts.curve_metrics.length > 0],
  [ranks, (run) => run.facts.ranks > 1],
  [timeline, (run) => run.column("attempts", "start").data.length > 0],
  [costs, () => true],
  [failures, (run) => run.facts.failures.length > 0],
  [trials, (run) => run.size > 0],
];

const isStudy = (run) => run.facts.kind === "hpo";

/** The sections in which the user can choose nothing: newer ones replace them. */
const REPLACED = new Set([summary, commands, importance, workers, ranks, costs, failures]);

const runPage = {
  build(run) {
    run.parts = new Map(SECTIONS.filter(([, has]) => has(run)).map(([make]) => [make, make(run)]));
    return [...run.parts.values()];
  },

  /** Updates the sections for newer content of a run; also adds and removes some. A section to replace is left while it has the focus: `behind`. */
  renew(run) {
    run.behind = null;
    let previous = document.querySelector("#page > nav");
    for (const [make, has] of SECTIONS) {
      const old = run.parts.get(make);
      if (old && has(run) && !REPLACED.has(make)) {
        for (const control of old.querySelectorAll("label")) control.renew?.();
        old.renew?.();
      } else if (old && has(run) && old.contains(document.activeElement)) {
        run.behind = old;
      } else {
        if (has(run)) run.parts.set(make, make(run));
        else run.parts.delete(make);
        if (old) Chart.drop(old);
        if (old && has(run)) old.replaceWith(run.parts.get(make));
        else if (old) old.remove();
        else if (has(run)) previous.after(run.parts.get(make));
      }
      previous = run.parts.get(make) ?? previous;
    }
    document.querySelector("#page > nav").replaceChildren(...linksTo([...document.querySelectorAll("#page > section")]));
  },
};

/** Columns as choices. */
const choicesOf = (columns) => columns.map(({ name }) => [name, name]);

const named = (columns, name) => columns.find((column) => column.name === name);

const titleOf = (objective) => `${objective.metric} (${objective.direction})`;

/** The lines of a hover text about a trial. */
function about(run, row) {
  const lines = [`${run.facts.noun} ${run.trial(row)} · ${run.state(row)}`];
  for (const { column } of run.objectives) if (column && column.has(row)) lines.push(`${column.name} ${column.short(row)}`);
  for (const column of run.params.slice(0, 12)) if (column.has(row)) lines.push(`${column.name} = ${String(column.short(row)).slice(0, 60)}`);
  return lines.map(plain).join("<br>");
}

/** Up to 5,000 hover texts; more would cost more than the chart. */
const hovers = (run, rows) => rows.length > 5000 ? Array.from(rows, (row) => `${run.facts.noun} ${run.trial(row)}`) : Array.from(rows, (row) => about(run, row));

/** Numbers that an axis can hold; others are gaps. */
const bounded = (value) => (Math.abs(value) < 1e150 ? value : NaN);

const pick = (column, rows) => Float64Array.from(rows, (row) => bounded(column.data[row]));

/** An axis for a parameter: a logarithm, names of choices, or numbers. */
function axisOf(column) {
  if (column.texts) return { title: column.name, tickvals: column.texts.slice(0, 40).map((_, i) => i + 1), ticktext: column.texts.slice(0, 40).map((text) => plain(text.slice(0, 24))) };
  return { title: column.name, type: column.log ? "log" : "linear" };
}

/** The values of a parameter for an axis: those of choices are shifted a little, to tell points apart. */
function placed(column, rows) {
  if (!column.texts) return pick(column, rows);
  return Float64Array.from(rows, (row) => column.data[row] ? column.data[row] + (((row * 2654435761) % 1000) / 1000 - 0.5) * 0.5 : NaN);
}

function summary(run) {
  const { facts } = run;
  const states = run.column("trials", "state");
  const counts = {};
  for (const code of states.data) counts[states.texts[code - 1]] = (counts[states.texts[code - 1]] || 0) + 1;
  const total = run.size;
  const cards = [
    card("State", el("span", { class: "state", "data-state": facts.state }, facts.state), facts.reason),
    card(`${facts.noun}s`, `${grouped(total)} of ${grouped(facts.trials)}`, Object.entries(counts).map(([state, count]) => `${grouped(count)} ${state.toLowerCase()}`).join(", ")),
  ];
  const [best] = facts.kind === "hpo" ? facts.best : [];
  const newest = facts.kind === "train" ? newestReports(run) : null;
  if (newest) cards.push(card("Step", grouped(newest.step), newest.text));
  if (facts.kind === "hpo" && best) {
    const values = facts.objectives.map((objective, i) => `${objective.metric} ${short(Number(best.values[i]))}`).join(", ");
    const detail = facts.best.length > 1 ? `${facts.noun} ${best.trial}, one of ${facts.best.length} on the Pareto front` : `${facts.noun} ${best.trial}`;
    cards.push(card("Best", values, detail));
  } else if (facts.kind === "hpo") cards.push(card("Best", "none yet", `no ${facts.noun} has a result`));
  const { used, saved } = facts.costs;
  cards.push(card("Used", ...hours(used)));
  if (saved.slot_hours > 0) cards.push(card(`Saved by ${savers(run)}`, ...hours(saved)));
  return section("summary", "Summary",
    facts.warnings.map(note), facts.description ? el("p", {}, facts.description) : null,
    el("div", { class: "cards" }, cards),
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, isStudy(run) ? "Search and budgets" : "Settings"), pairs(facts.facts)),
      best && best.params.length ? el("div", {}, el("h3", {}, `Parameters of ${facts.noun} ${best.trial}`), pairs(best.params)) : null));
}

/** What has saved slot-hours. */
const savers = (run) => run.facts.rungs.length ? "promotion" : "pruning";

const card = (title, value, detail) =>
  el("div", { class: "card" }, el("div", { class: "label" }, title), el("div", { class: "value" }, value), detail ? el("div", { class: "detail" }, detail) : null);

const pairs = (rows) => el("dl", {}, rows.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));

/** The unit of hours: seconds for less than six minutes in all. */
const unitOf = (hours) => hours > 0 && hours < 0.1 ? ["seconds", 3600] : ["hours", 1];

/** A cost, in whole cents. */
const money = (cost) => cost > 0 && cost < 0.01 ? "under 0.01" : cost.toFixed(2);

/** Slot-hours, and what they stand for. */
function hours({ slot_hours: slots, gpu_hours: gpus, cost }) {
  const shown = (value, name) => { const [unit, per] = unitOf(value); return `${short(Number((value * per).toPrecision(3)))} ${name}-${unit}`; };
  return [shown(slots, "slot"), [gpus ? shown(gpus, "GPU") : "", cost === null ? "" : `cost ${money(cost)}`].filter(Boolean).join(", ")];
}

/** The last step of a training that was reported, and its metrics; null before the first report. */
function newestReports(run) {
  const metrics = run.column("curves", "metric").data;
  const lasts = new Map();
  for (let i = 0; i < metrics.length; i++) {
    const { x, y } = curveOf(run, i);
    if (!lasts.has(metrics[i]) || x.at(-1) >= lasts.get(metrics[i]).step) lasts.set(metrics[i], { step: x.at(-1), value: y.at(-1) });
  }
  if (!lasts.size) return null;
  const text = Array.from(lasts, ([metric, { value }]) => `${run.facts.curve_metrics[metric]} ${value >= 1e4 ? grouped(Math.round(value)) : short(value)}`).slice(0, 4).join(", ");
  return { step: Math.max(...Array.from(lasts.values(), ({ step }) => step)), text };
}

function commands(run) {
  return section("next", "Next steps", run.facts.commands.map(([label, text]) => command(text, label)));
}

function history(run) {
  let [objective] = run.objectives, log = false, byTime = false;
  const x = (row) => byTime ? run.column("trials", "ended").data[row] / 3600 : run.trial(row);
  const chart = new Chart("Value of each trial, and the best so far", 400, () => {
    const groups = [["COMPLETE", "complete", run.feasible, "circle"]];
    const feasible = run.column("trials", "feasible").data;
    const out = run.complete.filter((row) => !feasible[row]);
    if (out.length) groups.push(["LOST", "infeasible", out, "x-thin-open"]);
    for (const state of ["PRUNED", "PAUSED", "RUNNING"]) {
      const rows = run.rowsOf(state).filter((row) => objective.column?.has(row));
      if (rows.length) groups.push([state, `${state.toLowerCase()}, last report`, rows, STATES[state].symbol]);
    }
    const data = groups.map(([state, name, rows, symbol]) => scatter({ name, mode: "markers", x: Float64Array.from(rows, x), y: pick(objective.column, rows), text: hovers(run, rows),
      marker: { color: shade(STATES[state].color), symbol: run.size > 5000 ? "circle" : symbol, size: run.size > 5000 ? 3 : 6 } }));
    const order = byTime ? Uint32Array.from(run.feasible).sort((a, b) => x(a) - x(b)) : run.feasible;
    const best = run.running(order, objective);
    if (best.length) {
      const last = order[order.length - 1];
      data.push({ type: "scatter", name: "best so far", mode: "lines", line: { shape: "hv", color: css("--strong"), width: 2 }, hoverinfo: "text",
        x: [...best.map(({ row }) => x(row)), x(last)], y: [...best.map(({ value }) => bounded(value)), bounded(best.at(-1).value)], text: [...best.map(({ row }) => about(run, row)), ""] });
    }
    const failed = run.rowsOf("FAILED"); // they have no value: on the lower edge
    if (failed.length) data.push(scatter({ name: "failed", mode: "markers", yaxis: "y2", x: Float64Array.from(failed, x), y: new Float64Array(failed.length).fill(0.015), text: hovers(run, failed), cliponaxis: false,
      marker: { color: shade(STATES.FAILED.color), symbol: STATES.FAILED.symbol, size: 6 } }));
    return { data, layout: layout({ xaxis: { title: byTime ? "hours since the start" : run.facts.noun, ...(run.size < 10 && !byTime ? { dtick: 1 } : {}) }, yaxis: { title: titleOf(objective), type: log ? "log" : "linear" },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true } }) };
  });
  const controls = [];
  if (run.objectives.length > 1) controls.push(select("Objective", run.objectives.map((each, i) => [i, each.metric]), 0, (i) => { objective = run.objectives[i]; chart.update(); }));
  controls.push(select("Axis", [["trial", run.facts.noun], ["time", "time"]], "trial", (value) => { byTime = value === "time"; chart.update(); }));
  controls.push(checkbox("Logarithmic", false, (value) => { log = value; chart.update(); }));
  return section("history", "History", el("div", { class: "controls" }, controls), chart.element);
}

function importance(run) {
  const { importances, no_importances: why } = run.facts;
  if (!importances.length) return why ? section("importances", "Importances", note(`Not computed: ${why}.`)) : null;
  const shown = importances.slice(0, 25).reverse();
  const [best, stopped] = run.objectives.length > 1 ? ["near the Pareto front", ""] : ["in the best tenth", "A stopped trial counts as worse than those that went further."];
  const chart = new Chart("Share of each parameter", Math.max(160, 26 * shown.length + 70), () => ({
    data: [{ type: "bar", orientation: "h", x: shown.map(([, share]) => share), y: shown.map(([name]) => plain(name.slice(0, 40))), marker: { color: shade(OKABE_ITO[0]) }, hoverinfo: "text", textposition: "none",
      text: shown.map(([name, share]) => plain(`${name}: ${(100 * share).toFixed(1)} %`)) }],
    layout: layout({ xaxis: { title: "share", tickformat: ".0%", rangemode: "tozero" }, yaxis: { type: "category", ticks: "" }, showlegend: false }),
  }));
  return section("importances", "Importances", el("p", {}, `How much each parameter decides whether a trial is ${best} (Optuna's PED-ANOVA, of at most 5,000 trials). ${stopped}`), chart.element);
}

/** What the value of a trial is where not only complete ones are drawn. */
function valueHint(run) {
  if (run.facts.rungs.length) return el("p", { class: "hint" }, `A ${run.facts.noun} that is not complete has the value of its last report, mostly at the rung where it is paused or was dropped.`);
  const isPruned = run.facts.facts.some(([name, text]) => name === "pruner" && text !== "none");
  return isPruned ? el("p", { class: "hint" }, `Only complete ${run.facts.noun}s are drawn: a pruned one has no value of the last step.`) : null;
}

function parallel(run) {
  const [objective] = run.objectives;
  const count = el("span", { class: "count", role: "status" });
  let axes, rows; // rows that match, the best first
  const draw = () => {
    const loss = (row) => bounded(objective.column.data[row]);
    const sorted = Float64Array.from(run.sample(1000, 1000, run.valued), loss).filter((value) => !Number.isNaN(value)).sort();
    const at = (share) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
    const [low, high] = objective.sign > 0 ? [at(0), at(0.9)] : [at(0.1), at(1)]; // bad outliers would take most of the colors
    const size = high > low ? high - low : 1;
    return { axes, faint: run.sample(200, 400, run.valued), lines: run.sample(1000, 1000, rows), isReversed: reversed(objective), share: (row) => Math.max(0, Math.min(1, (loss(row) - low) / size)) || 0,
      title: objective.metric.length > 40 ? `${objective.metric.slice(0, 39)}…` : objective.metric, ticks: [0, 0.25, 0.5, 0.75, 1].map((share) => [share, short(Number((low + share * size).toPrecision(3)))]) };
  };
  /** Applies the ranges to all trials, not only to the lines that are drawn. */
  const choose = () => {
    const tests = axes.filter((axis) => chart.ranges.has(axis.column)).map((axis) => {
      const [low, high] = chart.ranges.get(axis.column);
      return (row) => { const value = axis.value(row); return value >= low && value <= high; };
    });
    rows = tests.length ? run.valued.filter((row) => tests.every((test) => test(row))) : run.valued;
    run.table?.brush(tests.length ? rows : null);
    const all = grouped(run.valued.length);
    count.textContent = tests.length ? `${grouped(rows.length)} of ${all} match; the table of trials shows them alone` : rows.length > 2000 ? `the best 1,000 and a sample, of ${all}` : "";
    chart.updateLines();
  };
  const chart = new ParallelChart("Parallel coordinates of parameters and values", 440, draw, choose);
  const renew = () => {
    const columns = [...run.params.slice(0, 14), ...run.objectives.map((each) => each.column).filter(Boolean)];
    axes = columns.map((column) => new Axis(column, run.valued));
    chart.element.style.minWidth = `${90 * columns.length}px`; // narrow windows scroll it
    choose();
  };
  renew();
  return Object.assign(section("parallel", "Parallel coordinates", el("div", { class: "controls" }, el("span", {}, "Drag along an axis, or use its arrow keys, to choose a range. A click chooses all again."), count), valueHint(run), el("div", { class: "wide" }, chart.element)), { renew });
}

function slice(run) {
  let [objective] = run.objectives, column = run.params.find((param) => param.name === run.facts.importances[0]?.[0]) ?? run.params[0], log = false;
  const chart = new Chart("Value against one parameter", 400, () => {
    const rows = run.valued.filter((row) => column.isPlaced(row));
    const data = [scatter({ mode: "markers", x: placed(column, rows), y: pick(objective.column, rows), text: hovers(run, rows),
      marker: { symbol: rows.length > 5000 ? "circle" : Array.from(rows, (row) => STATES[run.state(row)].symbol), color: Float64Array.from(rows, (row) => run.trial(row)), colorscale: scale(), size: rows.length > 5000 ? 3 : 6, colorbar: { title: { text: run.facts.noun }, thickness: 12, outlinewidth: 0 } } })];
    return { data, layout: layout({ xaxis: axisOf(column), yaxis: { title: titleOf(objective), type: log ? "log" : "linear" }, showlegend: false }) };
  });
  const controls = [select("Parameter", () => choicesOf(run.params), column.name, (name) => { column = named(run.params, name); chart.update(); })];
  if (run.objectives.length > 1) controls.push(select("Objective", run.objectives.map((each, i) => [i, each.metric]), 0, (i) => { objective = run.objectives[i]; chart.update(); }));
  controls.push(checkbox("Logarithmic value", false, (value) => { log = value; chart.update(); }));
  return section("slice", "Slice", el("div", { class: "controls" }, controls), valueHint(run), chart.element);
}

/** The cells of an axis: choices, or equal parts of a range. */
function cells(column, rows, most) {
  if (column.texts) return { count: column.texts.length, cell: (row) => column.data[row] - 1, centers: column.texts.map((text) => plain(text.slice(0, 24))), type: "category" };
  const map = (value) => column.log ? Math.log10(value) : value;
  let low = Infinity, high = -Infinity;
  for (const row of rows) { const value = map(column.data[row]); if (value < low) low = value; if (value > high) high = value; }
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const width = (high - low) / most;
  const centers = Array.from({ length: most }, (_, i) => { const value = low + (i + 0.5) * width; return column.log ? 10 ** value : value; });
  return { count: most, cell: (row) => Math.min(most - 1, Math.floor((map(column.data[row]) - low) / width)), centers, type: column.log ? "log" : "linear" };
}

function contour(run) {
  const byImportance = run.facts.importances.map(([name]) => run.params.find((param) => param.name === name)).filter(Boolean);
  let [a, b] = [...new Set([...byImportance, ...run.params])], [objective] = run.objectives;
  const chart = new Chart("Value against two parameters", 460, () => {
    const rows = run.valued.filter((row) => [a, b, objective.column].every((column) => column.isPlaced(row)));
    const many = rows.length > BINNED_FROM;
    const most = many ? 50 : Math.max(5, Math.min(24, Math.round(Math.sqrt(rows.length) / 1.5)));
    const x = cells(a, rows, most), y = cells(b, rows, most);
    const sums = Array.from({ length: y.count }, () => new Float64Array(x.count)), numbers = Array.from({ length: y.count }, () => new Uint32Array(x.count));
    for (const row of rows) { const i = y.cell(row), j = x.cell(row); sums[i][j] += objective.column.data[row]; numbers[i][j]++; }
    const z = sums.map((line, i) => Array.from(line, (sum, j) => numbers[i][j] ? sum / numbers[i][j] : null));
    const text = z.map((line, i) => line.map((value, j) => value === null ? "" : `mean ${short(value)} of ${grouped(numbers[i][j])}`));
    const flat = z.flat().filter((value) => value !== null).sort((p, q) => p - q);
    const at = (share) => flat[Math.floor(share * (flat.length - 1))];
    const smooth = !many && flat[0] < flat[flat.length - 1] && x.type !== "category" && y.type !== "category" && rows.length >= 20;
    const [low, high] = objective.sign > 0 ? [at(0), at(0.9)] : [at(0.1), at(1)]; // bad outliers would take most of the colors
    const field = { type: smooth ? "contour" : "heatmap", x: x.centers, y: y.centers, z, text, hoverinfo: "text", colorscale: scale(), reversescale: reversed(objective), zmin: low, zmax: high > low ? high : low + 1,
      colorbar: { title: { text: plain(`mean ${objective.metric}`) }, thickness: 12, outlinewidth: 0 }, ...(smooth ? { connectgaps: true, line: { width: 0.5 }, ncontours: 14 } : { hoverongaps: false, xgap: 1, ygap: 1 }) };
    const data = [field];
    if (!many && x.type !== "category" && y.type !== "category") {
      const dots = run.sample(500, 500, rows);
      data.push({ type: "scatter", mode: "markers", x: pick(a, dots), y: pick(b, dots), text: hovers(run, dots), hoverinfo: "text", marker: { size: 5, color: css("--panel"), line: { width: 1, color: css("--strong") } } });
    }
    return { data, layout: layout({ xaxis: { title: a.name, type: x.type }, yaxis: { title: b.name, type: y.type }, showlegend: false }) };
  });
  const choices = () => choicesOf(run.params);
  const controls = [
    select("Horizontal", choices, a.name, (name) => { a = named(run.params, name); chart.update(); }),
    select("Vertical", choices, b.name, (name) => { b = named(run.params, name); chart.update(); }),
  ];
  if (run.objectives.length > 1) controls.push(select("Objective", run.objectives.map((each, i) => [i, each.metric]), 0, (i) => { objective = run.objectives[i]; chart.update(); }));
  return section("contour", "Contour", el("div", { class: "controls" }, controls), valueHint(run), chart.element);
}

function pareto(run) {
  let [a, b] = run.objectives;
  const chart = new Chart("Two objectives, and the Pareto front", 440, () => {
    const front = run.column("trials", "front").data;
    const rest = run.feasible.filter((row) => !front[row]);
    const feasible = new Set(run.feasible), infeasible = run.complete.filter((row) => !feasible.has(row));
    const best = Uint32Array.from(run.complete.filter((row) => front[row])).sort((p, q) => a.column.data[p] - a.column.data[q]);
    const dots = (name, rows, more) => scatter({ name, x: pick(a.column, rows), y: pick(b.column, rows), text: hovers(run, rows), mode: "markers", ...more });
    return { data: [dots("dominated", rest, { marker: { color: shade("#999999"), size: rest.length > 5000 ? 3 : 6 } }),
      ...(infeasible.length ? [dots("infeasible", infeasible, { marker: { color: shade(STATES.LOST.color), symbol: "x-thin-open", size: infeasible.length > 5000 ? 3 : 6 } })] : []),
      dots("Pareto front", best, { mode: run.objectives.length === 2 ? "lines+markers" : "markers", line: { color: shade(OKABE_ITO[3]), width: 1, shape: a.sign > 0 ? "hv" : "vh" }, marker: { color: shade(OKABE_ITO[3]), size: best.length > 5000 ? 3 : 9, symbol: "diamond" } })],
      layout: layout({ xaxis: { title: titleOf(a) }, yaxis: { title: titleOf(b) } }) };
  });
  const choices = run.objectives.map((objective, i) => [i, objective.metric]);
  const controls = choices.length > 2 ? [select("Horizontal", choices, 0, (i) => { a = run.objectives[i]; chart.update(); }), select("Vertical", choices, 1, (i) => { b = run.objectives[i]; chart.update(); })] : [];
  const holder = el("div", {});
  const renew = () => {
    const rows = run.facts.best.map((best) => [String(best.trial), ...best.values.map((value) => short(Number(value))), best.params.map(([name, text]) => `${name}=${brief(text).slice(0, 24)}`).join(", ")]);
    holder.replaceChildren(table([run.facts.noun, ...run.objectives.map((objective) => objective.metric), "parameters"], rows, `The first ${rows.length} trials of the front`));
  };
  renew();
  return Object.assign(section("pareto", "Pareto front", el("div", { class: "controls" }, controls), chart.element, holder), { renew });
}

function constraints(run) {
  const parts = run.facts.constraints.map((bound) => {
    const column = () => named(run.metrics, bound.metric);
    const inside = (row) => (bound.min === null || column().data[row] >= bound.min) && (bound.max === null || column().data[row] <= bound.max);
    const words = [bound.min === null ? "" : `at least ${short(bound.min)}`, bound.max === null ? "" : `at most ${short(bound.max)}`].filter(Boolean).join(" and ");
    const chart = new Chart(`${bound.metric} and its bounds`, 300, () => ({
      data: [["within", run.complete.filter(inside), shade(OKABE_ITO[0]), "circle"], ["outside", run.complete.filter((row) => !inside(row)), shade(OKABE_ITO[3]), "x"]].map(([name, rows, color, symbol]) => scatter({ name, mode: "markers", x: Float64Array.from(rows, (row) => run.trial(row)), y: pick(column(), rows), text: hovers(run, rows), marker: { color: shade(color), symbol, size: rows.length > 5000 ? 3 : 6 } })),
      layout: layout({ xaxis: { title: run.facts.noun }, yaxis: { title: bound.metric }, shapes: [bound.min, bound.max].filter((value) => value !== null).map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: css("--strong"), width: 1, dash: "dash" } })) }),
    }));
    const count = el("p", {});
    return { count, chart, renew: () => { count.textContent = `${bound.metric} must be ${words}: ${grouped(run.complete.filter(inside).length)} of ${grouped(run.complete.length)} complete trials are.`; } };
  });
  const renew = () => { for (const part of parts) part.renew(); };
  renew();
  return Object.assign(section("constraints", "Constraints", parts.map(({ count, chart }) => [count, chart.element])), { renew });
}

function iterations(run) {
  let column = run.metrics.find((metric) => /(^|[^a-z])elo([^a-z]|$)/i.test(metric.name)) ?? run.metrics.find((metric) => metric.name !== "units") ?? run.metrics[0];
  const chart = new Chart("A metric of each iteration", 340, () => {
    const rows = range(run.size).filter((row) => column.has(row));
    return { data: [scatter({ mode: "lines+markers", x: Float64Array.from(rows, (row) => run.trial(row)), y: pick(column, rows), text: hovers(run, rows), line: { color: shade(OKABE_ITO[0]) } })],
      layout: layout({ xaxis: { title: run.facts.noun }, yaxis: { title: column.name }, showlegend: false }) };
  });
  return section("iterations", "Iterations", el("div", { class: "controls" }, select("Metric", () => choicesOf(run.metrics), column.name, (name) => { column = named(run.metrics, name); chart.update(); })), chart.element);
}

function workers(run) {
  const { workers: all } = run.facts, hasMessages = all.some(({ message }) => message);
  const { active } = run.facts; // the states of workers are those before the end
  const rows = all.map((worker) => [String(worker.worker), ...(active ? [worker.state] : []), worker.node, grouped(worker.units), grouped(worker.items), String(worker.failed), worker.seconds > 0 ? short(worker.items / worker.seconds) : "", ...(hasMessages ? [worker.message] : [])]);
  return section("workers", "Workers", table(["worker", ...(active ? ["state"] : []), "node", "units", "items", "failed", "items/s", ...(hasMessages ? ["message"] : [])], rows, "Workers of the iteration that runs, or ran last"));
}

/** The curves of the run: rows of the table `curves`, with the points of each. */
function curveOf(run, index) {
  const start = run.column("curves", "start").data[index], count = run.column("curves", "count").data[index];
  const metric = run.column("curves", "metric").data[index];
  const part = (name) => run.column(`points ${metric}`, name).data.subarray(start, start + count);
  return { x: part("step"), y: part("value") };
}

function curves(run) {
  const names = () => run.facts.curve_metrics;
  const dashes = { COMPLETE: "solid", PRUNED: "dot", RUNNING: "solid", FAILED: "dash", LOST: "dashdot", PAUSED: "dashdot" };
  const one = (name, shownLog) => new Chart(`Curves of ${name}`, run.facts.kind === "hpo" ? 420 : 300, () => {
    const metric = names().indexOf(name), metrics = run.column("curves", "metric").data, numbers = run.column("curves", "number").data;
    const byNumber = new Map(Array.from(run.column("trials", "number").data, (number, row) => [number, row]));
    const attempts = new Map(Array.from(run.column("attempts", "number").data, (number, i) => [number, i]));
    const all = range(metrics.length).filter((i) => metrics[i] === metric);
    const rowOf = (i) => byNumber.get(numbers[i]);
    const ranks = run.column("trials", "rank").data;
    const banded = all.length > CURVES;
    let chosen = all;
    if (banded) {
      const known = all.filter((i) => rowOf(i) !== undefined);
      const pruned = known.filter((i) => run.state(rowOf(i)) === "PRUNED");
      const some = new Set(pruned.filter((_, i) => i % Math.ceil(pruned.length / 30) === 0));
      chosen = known.filter((i) => ranks[rowOf(i)] < 50 || run.selected.has(rowOf(i)) || some.has(i));
    }
    const data = [];
    if (banded) {
      const band = (name) => run.column("bands", name).data;
      const steps = range(band("metric").length).filter((i) => band("metric")[i] === metric);
      const at = (name) => Array.from(steps, (i) => bounded(band(name)[i]));
      const edge = (name, more) => ({ type: "scatter", mode: "lines", x: at("step"), y: at(name), line: { width: 0 }, hoverinfo: "skip", showlegend: false, ...more });
      data.push(edge("q5"), edge("q95", { fill: "tonexty", fillcolor: "rgba(86,180,233,0.20)", name: "5-95 % of all", showlegend: true }), edge("q25"), edge("q75", { fill: "tonexty", fillcolor: "rgba(86,180,233,0.35)", name: "25-75 % of all", showlegend: true }),
        edge("q50", { line: { width: 2, color: shade(OKABE_ITO[5]) }, name: "median of all", showlegend: true }));
    }
    const pauses = new Map(), promoted = []; // by the number of a curve: the steps from which its trial was promoted
    run.column("pauses", "number").data.forEach((number, i) => pauses.set(number, [...(pauses.get(number) ?? []), run.column("pauses", "step").data[i]]));
    const groups = new Map(), ends = [];
    const newest = run.facts.kind === "collect" ? Math.max(...chosen.map((i) => numbers[i])) : -1; // the attempt of an iteration
    for (const i of chosen) {
      const row = rowOf(i), selected = row !== undefined && run.selected.has(row);
      const state = row !== undefined ? run.state(row) : attempts.has(numbers[i]) ? run.column("attempts", "state").value(attempts.get(numbers[i])) : "LOST";
      const isNewest = numbers[i] === newest;
      const key = selected ? `selected ${run.facts.noun} ${run.trial(row)}` : isNewest ? "newest iteration" : newest >= 0 ? "earlier iterations" : state;
      if (!groups.has(key)) groups.set(key, { x: [], y: [], text: [], state, isStrong: selected || isNewest, selected });
      const group = groups.get(key), { x, y } = curveOf(run, i);
      const hover = row !== undefined ? about(run, row) : `earlier attempt`;
      for (let j = 0; j < x.length; j++) { group.x.push(x[j]); group.y.push(bounded(y[j])); group.text.push(hover); }
      group.x.push(null); group.y.push(null); group.text.push("");
      if (state === "PRUNED" && x.length) ends.push({ x: x[x.length - 1], y: bounded(y[y.length - 1]), text: hover });
      for (const step of pauses.get(numbers[i]) ?? []) {
        const at = x.indexOf(step);
        if (at >= 0) promoted.push({ x: step, y: bounded(y[at]), text: `${hover}<br>${run.facts.population ? "took over another state" : "promoted"} at step ${step}` });
      }
    }
    if (promoted.length) data.push({ type: "scatter", mode: "markers", name: run.facts.population ? "took over here" : "promoted here", x: promoted.map((end) => end.x), y: promoted.map((end) => end.y), text: promoted.map((end) => end.text), hoverinfo: "text", marker: { symbol: "triangle-up", size: 8, color: shade(STATES.RUNNING.color) } });
    if (ends.length) data.push({ type: "scatter", mode: "markers", name: "pruned here", x: ends.map((end) => end.x), y: ends.map((end) => end.y), text: ends.map((end) => end.text), hoverinfo: "text", marker: { symbol: "x", size: 6, color: shade(STATES.PRUNED.color) } });
    for (const [name, { x, y, text, state, selected, isStrong }] of groups) {
      const few = x.length <= 60;
      data.push({ type: x.length > 20_000 ? "scattergl" : "scatter", name: plain(selected ? name : name.toLowerCase()), mode: few ? "lines+markers" : "lines", x, y, text, hoverinfo: "text", connectgaps: false, opacity: isStrong ? 1 : chosen.length > 20 ? 0.55 : 0.9,
        marker: { size: 4 }, line: { color: isStrong ? css("--strong") : shade(STATES[state]?.color ?? "#999999"), width: isStrong ? 3 : 1.3, dash: dashes[state] ?? "solid" } });
    }
    const isLog = run.facts.rungs.length > 0 && run.column(`points ${metric}`, "step").data.every((step) => step > 0); // rungs are powers
    return { data, layout: layout({ xaxis: { title: "step", ...(isLog ? { type: "log", tickvals: run.facts.rungs.map(({ step }) => step) } : {}) }, yaxis: { title: name, type: shownLog() ? "log" : "linear" } }) };
  });
  let log = false;
  const holder = el("div", {});
  let charts = [], shown = [];
  const show = (which) => {
    Chart.drop(holder);
    shown = which;
    charts = which.map((name) => one(name, () => log));
    holder.replaceChildren(...charts.map((chart, i) => el("div", {}, which.length > 1 ? el("h3", {}, which[i]) : null, chart.element)));
  };
  const controls = el("div", { class: "controls" }, checkbox("Logarithmic", false, (value) => { log = value; for (const chart of charts) chart.update(); }));
  const hint = el("span", { class: "hint" });
  const renew = () => {
    if (run.facts.kind !== "hpo") {
      if (shown.length !== names().length) show(names());
      return;
    }
    if (names().length > 1 && !controls.querySelector("select")) controls.prepend(select("Metric", () => names().map((name) => [name, name]), shown[0], (name) => show([name])));
    hint.textContent = run.column("curves", "metric").data.length > CURVES ? "Bands are of all curves; lines are the 50 best, some pruned ones, and those that you select in the table." : "Select a row of the table to emphasize its curve.";
  };
  if (run.facts.kind === "hpo") {
    show([names()[0]]);
    controls.append(hint);
  } else holder.classList.add("tiles");
  renew();
  run.onselect.push(() => { for (const chart of charts) chart.update(); });
  return Object.assign(section("curves", run.facts.kind === "hpo" ? "Learning curves" : "Metrics", controls, holder), { renew });
}

/** How many trials reached each rung, and what became of them: a funnel. */
function rungs(run) {
  const { rungs: counts, noun } = run.facts;
  const name = ({ step }, i) => i === counts.length - 1 ? `end (${grouped(step)} steps)` : `${grouped(step)} step${step === 1 ? "" : "s"}`;
  const chart = new Chart("Trials at each rung", 120 + 44 * counts.length, () => {
    const { rungs: current } = run.facts;
    const running = current.map(({ reached, promoted, paused, dropped }) => reached - promoted - paused - dropped);
    const parts = [["promoted", current.map((rung) => rung.promoted), "RUNNING", ""], ["complete", current.map((_, i) => i === current.length - 1 ? running[i] : 0), "COMPLETE", ""], ["paused", current.map((rung) => rung.paused), "PAUSED", "/"], ["dropped", current.map((rung) => rung.dropped), "PRUNED", "."]];
    return { data: parts.filter(([, values]) => values.some(Boolean)).map(([label, x, state, shape]) => ({ type: "bar", orientation: "h", name: label, x, y: current.map(name), text: x.map((value) => value ? grouped(value) : ""), textposition: "inside", insidetextanchor: "middle", hoverinfo: "name+x", marker: { color: shade(STATES[state].color), pattern: { shape, fillmode: "overlay", fgopacity: 0.35, solidity: 0.15 } } })),
      layout: layout({ barmode: "stack", xaxis: { title: `${noun}s that reached the rung`, rangemode: "tozero" }, yaxis: { type: "category", autorange: "reversed", ticks: "" } }) };
  });
  return section("rungs", "Rungs and promotions", el("p", {}, "A trial is paused at each rung. The best continue from their checkpoints; a trial that cannot be among them any more is dropped."), chart.element);
}

/** The segments of a population's members: whose state each continues, and with which parameters. */
function lineage(run) {
  const column = (name) => run.column("segments", name).data, [objective] = run.objectives;
  const params = () => run.tables.get("segments").filter(({ category, data }) => category === "param" && new Set(data).size > 1);
  let param = params().find(({ name }) => name === run.facts.importances[0]?.[0])?.name ?? params()[0]?.name;
  /** Lines with a gap after each, as one trace. */
  const lines = (name, rows, pointsOf, more) => {
    const x = [], y = [];
    for (const row of rows) { for (const [a, b] of pointsOf(row)) { x.push(a); y.push(b); } x.push(null); y.push(null); }
    return scatter({ mode: "lines", name, x, y, hoverinfo: "skip", ...more });
  };
  const parts = () => {
    const [trials, donors, starts, ends, best] = ["trial", "donor", "start", "end", "best"].map(column);
    const all = range(trials.length), copies = all.filter((row) => donors[row] !== trials[row]);
    const bend = (row) => starts[row] + (donors[row] === trials[row] ? 0 : 0.4 * (ends[row] - starts[row])); // from where a member is on its own line
    const hover = Array.from(all, (row) => plain([`${run.facts.noun} ${trials[row]}, steps ${grouped(starts[row])} to ${grouped(ends[row])}`, donors[row] === trials[row] ? "" : `continues ${run.facts.noun} ${donors[row]}`].filter(Boolean).join(", "))
      + params().filter((each) => each.has(row)).slice(0, 12).map((each) => `<br>${plain(`${each.name} = ${String(each.short(row)).slice(0, 60)}`)}`).join(""));
    return { trials, donors, starts, ends, best, all, copies, bend, hover };
  };
  const strong = (more = {}) => ({ line: { color: css("--strong"), width: 3, ...more } });
  const tree = new Chart("Whose state each member continues", 260, () => {
    const { trials, donors, starts, ends, best, all, copies, bend, hover } = parts();
    const own = (row) => [[bend(row), trials[row]], [ends[row], trials[row]]], copy = (row) => [[starts[row], donors[row]], [bend(row), trials[row]]];
    const values = Float64Array.from(all, (row) => bounded(column("value")[row])), sorted = values.filter(Number.isFinite).sort();
    const at = (share) => sorted[Math.floor(share * (sorted.length - 1))], [low, high] = objective.sign > 0 ? [at(0), at(0.9)] : [at(0.1), at(1)];
    const leading = all.filter((row) => best[row]);
    return { data: [
      lines("continues its own state", all, own, { line: { color: shade("#999999"), width: 1.5 } }),
      lines("takes over another state", copies, copy, { line: { color: shade(OKABE_ITO[3]), width: 1.5, dash: "dot" } }),
      lines("lineage of the best", leading, (row) => [...(donors[row] === trials[row] ? [] : copy(row)), ...own(row)], strong()),
      scatter({ mode: "markers", showlegend: false, x: Float64Array.from(ends), y: Float64Array.from(trials), text: hover, marker: { size: 8, color: values, cmin: low, cmax: high > low ? high : low + 1, colorscale: scale(), reversescale: reversed(objective), line: { width: 1, color: css("--panel") }, colorbar: { title: { text: plain(objective.metric) }, thickness: 12, outlinewidth: 0 } } }),
    ], layout: layout({ xaxis: { title: "step", rangemode: "tozero" }, yaxis: { title: run.facts.noun, autorange: "reversed", dtick: new Set(trials).size > 20 ? undefined : 1, zeroline: false } }) };
  });
  const schedule = new Chart("A parameter of each member by step", 360, () => {
    const { trials, starts, ends, best, all, hover } = parts(), values = params().find(({ name }) => name === param);
    if (!values) return { data: [], layout: layout({}) };
    const isLog = run.params.find(({ name }) => name === param)?.log && values.data.every((value) => !(value <= 0));
    const points = (row) => [[starts[row], values.data[row]], [ends[row], values.data[row]]], known = all.filter((row) => values.has(row));
    return { data: [
      lines("members", known, points, { line: { color: shade("#999999"), width: 1.5 } }),
      lines("lineage of the best", known.filter((row) => best[row]), points, strong()),
      scatter({ mode: "markers", showlegend: false, x: Float64Array.from(known, (row) => ends[row]), y: Float64Array.from(known, (row) => values.data[row]), text: Array.from(known, (row) => hover[row]), marker: { size: 5, color: Array.from(known, (row) => best[row] ? css("--strong") : shade("#999999")) } }),
    ], layout: layout({ xaxis: { title: "step", rangemode: "tozero" }, yaxis: axisOf({ name: values.name, texts: values.texts, log: isLog }) }) };
  });
  const count = el("p", {}), holder = el("div", {});
  const renew = () => {
    const copies = range(column("trial").length).filter((row) => column("donor")[row] !== column("trial")[row]).length;
    count.textContent = `At each interval, members of the population take over the state of better ones and change parameters: ${grouped(copies)} times in this run.`;
    tree.resize({ height: `${Math.max(260, Math.min(720, 110 + 22 * new Set(column("trial")).size))}px` });
    if (!params().length || holder.firstChild) return;
    param ??= params()[0].name;
    holder.append(el("div", { class: "controls" }, select("Parameter", () => choicesOf(params()), param, (name) => { param = name; schedule.update(); })), schedule.element);
  };
  renew();
  return Object.assign(section("lineage", "Lineage", count, tree.element, holder), { renew });
}

/** The own time per step of each rank of a training, and the ranks that held the others up. */
function ranks(run) {
  const column = (name) => run.column("ranks", name).data;
  const draw = () => {
    const numbers = column("rank"), steps = column("step"), seconds = column("seconds");
    const known = [...new Set(numbers)];
    const rowsOf = (rank) => range(numbers.length).filter((row) => numbers[row] === rank);
    const at = (rows, values) => Array.from(rows, (row) => values[row]);
    if (known.length <= LINES) {
      const data = known.map((rank, i) => [rank, rowsOf(rank), i]).map(([rank, rows, i]) => ({ type: "scatter", mode: rows.length > 60 ? "lines" : "lines+markers", name: `rank ${rank}`, x: at(rows, steps), y: at(rows, seconds),
        hovertemplate: `rank ${rank}<br>step %{x:,}<br>%{y:.3~g} s<extra></extra>`, marker: { size: 4 }, line: { color: shade(OKABE_ITO[i % OKABE_ITO.length]), width: 1.5, dash: ["solid", "dash"][Math.floor(i / OKABE_ITO.length) % 2] } }));
      return { data, layout: layout({ xaxis: { title: "step" }, yaxis: { title: "seconds per step", rangemode: "tozero" } }) };
    }
    const x = [...new Set(steps)].sort((a, b) => a - b), z = known.map(() => new Array(x.length).fill(null));
    const place = new Map(x.map((step, i) => [step, i])), line = new Map(known.map((rank, i) => [rank, i]));
    for (let row = 0; row < numbers.length; row++) z[line.get(numbers[row])][place.get(steps[row])] = seconds[row];
    const field = { type: "heatmap", x, y: known, z, colorscale: scale(), reversescale: document.documentElement.dataset.theme !== "dark", hoverongaps: false, hovertemplate: "rank %{y}<br>step %{x:,}<br>%{z:.3~g} s<extra></extra>",
      colorbar: { title: { text: "seconds<br>per step" }, thickness: 12, outlinewidth: 0 } };
    return { data: [field], layout: layout({ xaxis: { title: "step" }, yaxis: { title: "rank", dtick: known.length > 16 ? 8 : 1 } }) };
  };
  const chart = column("rank").length ? new Chart("Own time per step of each rank", 360, draw) : null;
  const rows = run.facts.stragglers.map(({ rank, reports, first, last, factor }) => [String(rank), grouped(reports), `${grouped(first)} to ${grouped(last)}`, factor ? `${short(factor)}×` : ""]);
  return section("ranks", "Ranks", chart ? el("p", {}, "The own time per step of each rank: reading data and computing, without waiting for others.") : null, chart?.element,
    rows.length ? table(["rank", "reports", "steps", "slower than the others by up to"], rows, "Ranks that held the others up") : el("p", {}, "No report names a rank that held the others up."),
    el("p", { class: "hint" }, "A report names the slowest rank of a node while its own time is 1.5 times the median of the others there."));
}

function timeline(run) {
  const column = (name) => run.column("attempts", name);
  const [frees, requests, starts, ends, lanes, states] = ["free", "requested", "start", "end", "lane", "state"].map(column);
  const asked = (i) => (Number.isNaN(requests.data[i]) ? starts.data[i] : requests.data[i]);
  const first = (i) => (Number.isNaN(frees.data[i]) ? asked(i) : frees.data[i]);
  const bars = () => ({ x: [], base: [], y: [], text: [] });
  const extent = () => {
    let last = 0, slots = 0;
    for (let i = 0; i < starts.data.length; i++) { last = Math.max(last, ends.data[i]); slots = Math.max(slots, lanes.data[i] + 1); }
    return { last, slots, unit: last > 7200 ? [3600, "hours"] : last > 300 ? [60, "minutes"] : [1, "seconds"] };
  };
  let view = null; // all of it
  const draw = () => {
    const { last, slots, unit } = extent();
    const [from, to] = view ?? [0, last || 1];
    const visible = range(starts.data.length).filter((i) => ends.data[i] >= from && first(i) <= to);
    const data = [];
    const merged = visible.length > BARS;
    if (merged) {
      const bins = 600, width = (to - from) / bins;
      const filled = (name, color, begin, end) => {
        const busy = new Float64Array(bins);
        for (const i of visible) {
          const a = Math.max(0, (begin(i) - from) / width), b = Math.min(bins, (end(i) - from) / width);
          for (let bin = Math.floor(a); bin < b; bin++) busy[bin] += Math.min(b, bin + 1) - Math.max(a, bin);
        }
        return { type: "scatter", mode: "lines", stackgroup: "slots", name, line: { shape: "hvh", width: 1, color }, x: Array.from(busy, (_, bin) => (from + (bin + 0.5) * width) / unit[0]), y: Array.from(busy), hoverinfo: "x+y+name" };
      };
      data.push(filled("working", shade(OKABE_ITO[0]), (i) => starts.data[i], (i) => ends.data[i]), filled("starting", css("--strong"), asked, (i) => starts.data[i]), filled("waiting", shade("#999999"), first, asked));
    } else {
      const groups = new Map(), waits = bars(), begins = bars(), narrowest = (to - from) / 2000;
      const add = (bar, i, begin, end, words) => {
        bar.base.push(begin / unit[0]);
        bar.x.push(Math.max(end - begin, narrowest) / unit[0]);
        bar.y.push(lanes.data[i]);
        const workers = column("workers").data[i];
        bar.text.push(plain(`${run.facts.noun} ${column("trial").data[i]}, attempt ${column("attempt").data[i]}: ${words}, ${duration(end - begin)}${workers ? `, with ${counted(Number(workers.toPrecision(3)), "worker")}` : ""}`));
      };
      for (const i of visible) {
        if (asked(i) - first(i) > narrowest) add(waits, i, first(i), asked(i), "the slot waited before it");
        if (starts.data[i] - asked(i) > narrowest) add(begins, i, asked(i), starts.data[i], "starting");
        const state = states.value(i), failure = column("failure").value(i);
        if (!groups.has(state)) groups.set(state, bars());
        add(groups.get(state), i, starts.data[i], ends.data[i], `${state}${failure ? ` (${failure})` : ""}`);
      }
      const before = (name, bar, width, color) => bar.x.length && data.push({ type: "bar", orientation: "h", name, ...bar, textposition: "none", hoverinfo: "text", width, marker: { color, line: { width: 0 } } });
      before("waiting", waits, 0.12, css("--faint"));
      before("starting", begins, 0.4, css("--strong"));
      for (const [state, bar] of groups) data.push({ type: "bar", orientation: "h", name: state.toLowerCase(), ...bar, textposition: "none", hoverinfo: "text", width: 0.8, marker: { color: shade(STATES[state]?.color ?? "#999999"), pattern: { shape: { FAILED: "x", LOST: "/", PRUNED: ".", PAUSED: "-" }[state] ?? "" }, line: { width: 0 } } });
    }
    const lost = visible.filter((i) => states.value(i) === "LOST" && ends.data[i] <= to).slice(-BARS);
    if (lost.length) data.push(scatter({ name: "lost here", mode: "markers", x: Array.from(lost, (i) => ends.data[i] / unit[0]), y: Array.from(lost, (i) => merged ? 0 : lanes.data[i]), cliponaxis: false,
      text: Array.from(lost, (i) => plain(`${run.facts.noun} ${column("trial").data[i]}, attempt ${column("attempt").data[i]} was lost${column("failure").value(i) ? ` (${column("failure").value(i)})` : ""} after ${duration(ends.data[i] - starts.data[i])}`)),
      marker: { size: 9, color: css("--strong"), ...(merged ? { symbol: "line-ns-open" } : { symbol: "x", line: { width: 1, color: css("--panel") } }) } }));
    return { data, layout: layout({ barmode: "overlay", showlegend: true, xaxis: { title: `${unit[1]} since the start`, range: [from / unit[0], to / unit[0]] },
      yaxis: merged ? { title: "slots", rangemode: "tozero", fixedrange: true } : { title: "slot", range: [slots - 0.4, -0.6], dtick: slots > 20 ? undefined : 1, fixedrange: true } }) };
  };
  const chart = new Chart("Attempts over time, by slot", 220, draw, (element) => {
    element.on("plotly_relayout", (change) => {
      const { unit } = extent();
      if ("xaxis.range[0]" in change) view = [change["xaxis.range[0]"] * unit[0], change["xaxis.range[1]"] * unit[0]];
      else if (change["xaxis.autorange"]) view = null;
      else return;
      chart.update();
    });
  });
  /** Shows a shorter or longer part of the time, and moves it by a share of its length; within all of it. */
  const zoom = (factor, share) => () => {
    const last = extent().last || 1, [from, to] = view ?? [0, last];
    const size = Math.min(last, factor * (to - from)), start = (from + to - size) / 2 + share * size;
    const begin = Math.max(0, Math.min(last - size, start));
    view = size < last ? [begin, begin + size] : null;
    chart.update();
  };
  const buttons = [["Zoom in", 0.5, 0], ["Zoom out", 2, 0], ["Earlier", 1, -0.5], ["Later", 1, 0.5]].map(([name, factor, share]) => el("button", { type: "button", onclick: zoom(factor, share) }, name));
  const words = el("p", {});
  const renew = () => {
    const { idle, slots } = run.facts.costs;
    words.textContent = [idle === null ? "" : `${slots === 1 ? "1 slot was" : `${slots} slots were`} idle for ${(100 * idle).toFixed(0)} % of the time that the run had ${slots === 1 ? "it" : "them"}.`,
      run.facts.kind === "collect" ? "Bars are iterations in the slot of the learner; the time of single workers is not recorded." : "",
      starts.data.length > BARS ? "Zoom in to see single attempts: drag over a part of the chart, or press the buttons." : ""].filter(Boolean).join(" ");
    words.hidden = !words.textContent;
    chart.resize({ height: `${Math.max(220, Math.min(560, 90 + 26 * extent().slots))}px` });
  };
  renew();
  return Object.assign(section("timeline", "Timeline", words, el("div", { class: "controls" }, buttons), chart.element), { renew });
}

function costs(run) {
  const { used, lost, saved, method } = run.facts.costs;
  const [unit, per] = unitOf(Math.max(used.slot_hours, saved.slot_hours));
  const cells = (hour) => [...[hour.slot_hours * per, ...(used.gpu_hours ? [hour.gpu_hours * per] : [])].map((value) => short(Number(value.toPrecision(3)))), ...(used.cost === null ? [] : [money(hour.cost)])];
  const header = ["", `slot-${unit}`, ...(used.gpu_hours ? [`GPU-${unit}`] : []), ...(used.cost === null ? [] : ["cost"])];
  const rows = [["used by all attempts", ...cells(used)], ["of these in failed and lost attempts", ...cells(lost)]];
  if (saved.slot_hours > 0) rows.push([`saved by ${savers(run)} (estimate)`, ...cells(saved)]);
  return section("costs", "Costs and savings", table(header, rows), saved.slot_hours > 0 ? el("p", { class: "hint" }, method) : null);
}

function failures(run) {
  return section("failures", "Failures", run.facts.failures.map((failure) => el("div", { class: "failure" },
    el("div", {}, el("span", { class: "state", "data-state": failure.retried ? "LOST" : "FAILED" }, failure.class), ` ${grouped(failure.count)}× ${failure.retried ? "retried" : "failed"}, first ${run.facts.noun} ${failure.trial}`),
    failure.line ? el("pre", {}, failure.line) : null, logOf(run, failure.trial, failure.attempt))));
}

/** The log of a trial: a link where the page is live, and the command. */
function logOf(run, trial, attempt = 0) {
  const words = run.facts.log.split(" ");
  const text = [...words.slice(0, 3), trial, ...(attempt > 1 ? ["--attempt", attempt] : []), ...words.slice(3)].join(" ");
  const link = linked(run.facts.logs) && el("a", { href: `${run.facts.logs}?trial=${trial}&attempt=${attempt}`, target: "_blank", rel: "noopener" }, `Log of ${run.facts.noun} ${trial}`);
  return el("div", {}, link || null, command(text));
}

function trials(run) {
  const details = el("div", { class: "details", "aria-live": "polite" });
  let trial = null; // whose details are shown
  const show = (row) => {
    trial = run.selected.has(row) ? run.trial(row) : null;
    if (trial === null) return details.replaceChildren();
    const message = run.column("trials", "message").value(row);
    const newer = el("div", { class: "details", "aria-live": "polite" }, el("h3", {}, `${run.facts.noun} ${trial}`), message ? el("pre", {}, message) : "",
      pairs([...run.objectives.filter(({ column }) => column?.has(row)).map(({ column }) => [column.name, column.text(row)]), ...run.params.filter((column) => column.has(row)).map((column) => [column.name, column.text(row)])]),
      logOf(run, trial));
    if (!newer.isEqualNode(details)) details.replaceChildren(...newer.childNodes);
  };
  run.table = new Table("Trials", run, tableColumns(run), { hint: "loss < 0.3, state = PRUNED", onselect: (row) => { show(row); for (const each of run.onselect) each(row); } });
  const renew = () => {
    run.table.renew(tableColumns(run));
    if (trial !== null) show(run.rowOf(trial));
  };
  return Object.assign(section("trials", run.facts.kind === "collect" ? "Iterations in a table" : "Trials", el("p", { class: "hint" }, run.facts.kind === "collect" ? "" : "Best first. ", `Arrow keys move, Enter selects. The table has the values that charts show of ${run.facts.kind === "collect" ? "an iteration" : `a ${run.facts.noun}`} under the pointer. Numbers have seven digits; the command for all results is above.`), run.table.element, details), { renew });
}
