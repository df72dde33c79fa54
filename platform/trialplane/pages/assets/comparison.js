/* Several runs side by side: what differs, how good they are, and which differences may be chance. */

const LEGEND = 40; // curves that have names in a legend

function comparisonPage(comparison) {
  const compared = comparison[comparison.of];
  const rows = rowsFor(compared.length, "comparison");
  const history = comparison.curves.some((curve) => curve.points.length) ? comparedHistory(comparison, rows) : null;
  const parts = [comparedRuns(comparison, rows, () => history?.renew()), history];
  if (compared.length > 1) parts.push(comparedGroups(comparison));
  return parts.filter(Boolean);
}

/** The rows of a table without trials. */
const rowsFor = (size, name) => ({ size, name, positions: range(size), trial: () => null, selected: new Set() });

/** A value in JSON, where a number that is not finite is a text. */
const number = (value) => (value === null ? null : Number(value));

function comparedRuns(comparison, rows, onselect) {
  const { fields, differing, same, objective } = comparison, compared = comparison[comparison.of];
  const titles = { seconds: "time", reached: "to reach", best: `best ${objective.metric}`, value: objective.metric };
  const used = fields.filter((name) => name !== "trials" && compared.some((each) => each[name] !== null && each[name] !== ""));
  const timed = (name) => ({ short: (row) => duration(number(compared[row][name])) });
  const more = { state: { mark: true }, message: { wide: true }, seconds: timed("seconds"), reached: timed("reached"), ended: { short: (row) => `${compared[row].ended} of ${compared[row].trials}` } };
  const texts = new Set(["run", "trial", "state", "message"].filter((name) => typeof compared[0][name] === "string"));
  const field = (name) => Column.of(titles[name] ?? name, compared.map((each) => (texts.has(name) ? each[name] : number(each[name]))), more[name]);
  const setting = (name) => {
    const values = compared.map((each) => (Object.hasOwn(each.params, name) ? each.params[name] : null));
    return Column.of(name, values.every((value) => value === null || isNumber(value)) ? values.map(number) : values);
  };
  const isMessage = (name) => name === "message"; // long, so the last column
  const columns = (all) => [...used.filter((name) => !isMessage(name)).map(field), ...(all ? [...differing, ...same] : differing).map(setting), ...used.filter(isMessage).map(field)];
  const table = new Table(comparison.of === "runs" ? "Runs" : "Trials", rows, columns(false), { hint: `${titles[comparison.of === "runs" ? "best" : "value"]} < 0.3`, onselect });
  const goal = comparison.goal === null ? "" : `"to reach" is the time until ${objective.metric} ${short(number(comparison.goal))}, and "steps" the reported steps by then.`;
  const switched = same.length ? el("div", { class: "controls" }, checkbox(`Also the ${counted(same.length, "equal parameter")}`, false, (all) => table.renew(columns(all)))) : null;
  return section(comparison.of, comparison.of === "runs" ? "Runs" : "Trials compared", switched, table.element, el("p", { class: "hint" }, [goal, "The curves of selected rows are emphasized."].filter(Boolean).join(" ")));
}

function comparedHistory(comparison, rows) {
  const ofRuns = comparison.of === "runs", { curves } = comparison;
  let axis = ofRuns ? "time" : "steps", log = false;
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const colorOf = (i) => shade(OKABE_ITO[i % OKABE_ITO.length]);
  const x = (point) => point[axis] / (axis === "time" ? 60 : 1);
  const trace = (name, chosen, color, more) => { // with a gap after each curve
    const parts = chosen.map((i) => [...curves[i].points.map((point) => [x(point), point.value, plain(curves[i].name)]), [null, null, ""]]).flat();
    return { type: "scatter", mode: "lines", name: plain(name), x: parts.map(([at]) => at), y: parts.map(([, value]) => value), text: parts.map(([, , text]) => text), hoverinfo: "text+x+y",
      line: { shape: ofRuns ? "hv" : "linear", width: 2, color, ...more }, opacity: rows.selected.size && !rows.selected.has(chosen[0]) ? 0.3 : 1 };
  };
  const chart = new Chart(ofRuns ? "The best value so far of each run" : "The reported values of each trial", 440, () => {
    const all = Array.from(curves, (_, i) => i), isFew = curves.length <= LEGEND;
    const single = isFew ? all : [...rows.selected]; // the others are one trace for each color, as hundreds are drawn slowly
    const data = single.map((i) => trace(curves[i].name, [i], colorOf(i), { dash: dashes[Math.floor(i / OKABE_ITO.length) % dashes.length], width: rows.selected.has(i) ? 3.5 : 2 }));
    if (!isFew) data.unshift(...OKABE_ITO.map((_, color) => ({ ...trace("", all.filter((i) => i % OKABE_ITO.length === color && !rows.selected.has(i)), colorOf(color), { width: 1 }), showlegend: false })));
    return { data, layout: layout({ xaxis: { title: { time: "minutes since the start", count: ofRuns ? "results" : "reports", steps: "steps" }[axis] }, yaxis: { title: `${ofRuns ? "best " : ""}${comparison.objective.metric}`, type: log ? "log" : "linear" }, showlegend: single.length <= LEGEND }) };
  });
  const controls = [select("Axis", [["time", "time"], ["count", ofRuns ? "results" : "reports"], ["steps", "steps"]], axis, (value) => { axis = value; chart.update(); }), checkbox("Logarithmic", false, (value) => { log = value; chart.update(); })];
  return Object.assign(section("progress", "Progress", el("div", { class: "controls" }, controls), chart.element), { renew: () => chart.update() });
}

function comparedGroups({ pairs, groups, of, objective, method }) {
  const tableOf = (label, rows, columns) => {
    const few = rows.length <= 10;
    return [el("h3", {}, label), new Table(label, rowsFor(rows.length, label), columns, few ? {} : { hint: columns[0].title }).element];
  };
  const column = (rows, title, value, more) => Column.of(title, rows.map(value), more);
  const values = (rows, title, name) => column(rows, title, (row) => number(row[name]));
  const interval = (pair) => (pair.low === null ? "" : `${short(number(pair.low))} to ${short(number(pair.high))}`);
  return section("noise", "Differences and noise", el("p", {}, method),
    tableOf("Groups of repetitions", groups, [column(groups, "group", (group) => group.name), values(groups, `mean ${objective.metric}`, "mean"), values(groups, "standard deviation", "deviation"), column(groups, of, (group) => group.members.join(", "), { wide: true })]),
    pairs.length ? tableOf(`Differences from ${pairs[0].b}`, pairs, [column(pairs, "group", (pair) => pair.a), values(pairs, "difference", "difference"), column(pairs, "95 % interval", interval), column(pairs, "verdict", (pair) => pair.verdict)]) : null);
}
