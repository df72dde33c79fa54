/* Several runs side by side: what differs, how good they are, and which differences may be chance. */

function comparisonPage(comparison, runs) {
  const parts = [comparedRuns(comparison)];
  if (comparison.curves.some((curve) => curve.points.length)) parts.push(comparedHistory(comparison));
  if (comparison[comparison.of].length > 1) parts.push(comparedGroups(comparison));
  return parts;
}

function comparedRuns(comparison) {
  const { fields, differing, same, objective } = comparison, compared = comparison[comparison.of];
  const titles = { seconds: "time", reached: "to reach", best: `best ${objective.metric}`, value: objective.metric };
  const used = fields.filter((name) => name !== "trials" && compared.some((each) => each[name] !== null && each[name] !== ""));
  const shown = { state: (each) => el("span", { class: "state", "data-state": each.state }, each.state), ended: (each) => `${each.ended} of ${each.trials}`, seconds: (each) => duration(each.seconds), reached: (each) => each.reached === null ? "" : duration(each.reached),
    steps: (each) => each.steps === null ? "" : grouped(each.steps), best: (each) => each.best === null ? "" : short(Number(each.best)), value: (each) => each.value === null ? "" : short(Number(each.value)) };
  const holder = el("div", {});
  const draw = (all) => {
    const names = all ? [...differing, ...same] : differing;
    const header = [...used.map((name) => titles[name] ?? name), ...names];
    const rows = compared.map((each) => [...used.map((name) => shown[name] ? shown[name](each) : each[name] === null ? "" : String(each[name]).slice(0, 200)), ...names.map((name) => brief(Object.hasOwn(each.params, name) ? each.params[name] : "").slice(0, 80))]);
    holder.replaceChildren(table(header, rows));
  };
  draw(false);
  const goal = comparison.goal === null ? "" : `"to reach" is the time until ${objective.metric} ${short(Number(comparison.goal))}, and "steps" the reported steps by then.`;
  return section(comparison.of, comparison.of === "runs" ? "Runs" : "Trials compared", el("div", { class: "controls" }, checkbox(`Also the ${same.length} equal parameters`, false, draw)), holder, el("p", { class: "hint" }, goal));
}

function comparedHistory(comparison) {
  const ofRuns = comparison.of === "runs";
  let axis = ofRuns ? "time" : "steps", log = false;
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const chart = new Chart(ofRuns ? "The best value so far of each run" : "The reported values of each trial", 440, () => ({
    data: comparison.curves.map(({ name, points }, i) => ({ type: "scatter", mode: "lines", name: plain(name), x: points.map((point) => point[axis] / (axis === "time" ? 60 : 1)), y: points.map((point) => point.value), hoverinfo: "name+x+y",
      line: { shape: ofRuns ? "hv" : "linear", width: 2, color: shade(OKABE_ITO[i % OKABE_ITO.length]), dash: dashes[Math.floor(i / OKABE_ITO.length) % dashes.length] } })),
    layout: layout({ xaxis: { title: { time: "minutes since the start", count: ofRuns ? "results" : "reports", steps: "steps" }[axis] }, yaxis: { title: `${ofRuns ? "best " : ""}${comparison.objective.metric}`, type: log ? "log" : "linear" }, showlegend: comparison.curves.length <= 40 }),
  }));
  const controls = [select("Axis", [["time", "time"], ["count", ofRuns ? "results" : "reports"], ["steps", "steps"]], axis, (value) => { axis = value; chart.update(); }), checkbox("Logarithmic", false, (value) => { log = value; chart.update(); })];
  return section("progress", "Progress", el("div", { class: "controls" }, controls), chart.element);
}

function comparedGroups(comparison) {
  const rows = comparison.pairs.map((pair) => [pair.a, pair.b, pair.difference === null ? "" : short(Number(pair.difference)), pair.low === null ? "" : `${short(Number(pair.low))} to ${short(Number(pair.high))}`, pair.verdict]);
  return section("noise", "Differences and noise", el("p", {}, comparison.method),
    table(["group", comparison.of, `mean ${comparison.objective.metric}`, "standard deviation"], comparison.groups.map((group) => [group.name, group.members.join(", "), group.mean === null ? "" : short(Number(group.mean)), group.deviation === null ? "" : short(Number(group.deviation))]), "Repetitions are one group"),
    rows.length ? table(["group", "against", "difference", "95 % interval", "verdict"], rows) : null);
}
