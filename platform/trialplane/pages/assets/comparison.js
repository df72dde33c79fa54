/* Several runs side by side: what differs, how good they are, and which differences may be chance. */

function comparisonPage(comparison, runs) {
  const parts = [comparedRuns(comparison)];
  if (comparison.curves.some((curve) => curve.points.length)) parts.push(comparedHistory(comparison));
  if (comparison.runs.length > 1) parts.push(comparedGroups(comparison));
  return parts;
}

function comparedRuns(comparison) {
  const { runs, differing, same, objective } = comparison;
  const holder = el("div", {});
  const draw = (all) => {
    const names = all ? [...differing, ...same] : differing;
    const header = ["run", "state", "ended", `best ${objective.metric}`, "trial", "time", "to reach", "steps", ...names];
    const rows = runs.map((run) => [run.run, el("span", { class: "state", "data-state": run.state }, run.state), `${run.ended} of ${run.trials}`, run.best === null ? "" : short(Number(run.best)), run.trial === null ? "" : String(run.trial),
      duration(run.seconds), run.reached === null ? "" : duration(run.reached), run.steps === null ? "" : grouped(run.steps), ...names.map((name) => brief(Object.hasOwn(run.params, name) ? run.params[name] : "").slice(0, 80))]);
    holder.replaceChildren(table(header, rows));
  };
  draw(false);
  const goal = comparison.goal === null ? "" : `"to reach" is the time until ${objective.metric} ${short(Number(comparison.goal))}, and "steps" the reported steps by then.`;
  return section("runs", "Runs", el("div", { class: "controls" }, checkbox(`Also the ${same.length} equal parameters`, false, draw)), holder, el("p", { class: "hint" }, goal));
}

function comparedHistory(comparison) {
  let axis = "time", log = false;
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const chart = new Chart("The best value so far of each run", 440, () => ({
    data: comparison.curves.map(({ run, points }, i) => ({ type: "scatter", mode: "lines", name: plain(run), x: points.map((point) => point[axis] / (axis === "time" ? 60 : 1)), y: points.map((point) => point.value), hoverinfo: "name+x+y",
      line: { shape: "hv", width: 2, color: OKABE_ITO[i % OKABE_ITO.length], dash: dashes[Math.floor(i / OKABE_ITO.length) % dashes.length] } })),
    layout: layout({ xaxis: { title: { time: "minutes since the start", count: "results", steps: "steps" }[axis] }, yaxis: { title: `best ${comparison.objective.metric}`, type: log ? "log" : "linear" }, showlegend: comparison.curves.length <= 40 }),
  }));
  const controls = [select("Axis", [["time", "time"], ["count", "results"], ["steps", "steps"]], "time", (value) => { axis = value; chart.update(); }), checkbox("Logarithmic", false, (value) => { log = value; chart.update(); })];
  return section("progress", "Progress", el("div", { class: "controls" }, controls), chart.element);
}

function comparedGroups(comparison) {
  const rows = comparison.pairs.map((pair) => [pair.a, pair.b, pair.difference === null ? "" : short(Number(pair.difference)), pair.low === null ? "" : `${short(Number(pair.low))} to ${short(Number(pair.high))}`, pair.verdict]);
  return section("noise", "Differences and noise", el("p", {}, comparison.method),
    table(["group", "runs", `mean ${comparison.objective.metric}`, "standard deviation"], comparison.groups.map((group) => [group.name, group.runs.join(", "), group.mean === null ? "" : short(Number(group.mean)), group.deviation === null ? "" : short(Number(group.deviation))]), "Runs that differ in their seed alone are one group"),
    rows.length ? table(["group", "against", "difference", "95 % interval", "verdict"], rows) : null);
}
