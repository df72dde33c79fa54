/* Builds the page: first all that needs no plotly.js, which takes longer to start than the rest of the page; then its charts. */

const state = { runs: [], comparison: null, shown: 0 };

/** Links to those parts of the page that are sections. */
const linksTo = (parts) => parts.filter((part) => part.id).map((part) => el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));

function build() {
  const page = document.getElementById("page");
  const { runs, comparison } = state;
  Chart.drop(page);
  const switcher = runs.length > 1 ? select("Run", runs.map((run, i) => [i, run.facts.run]), state.shown, (i) => { state.shown = Number(i); build(); }) : null;
  const run = runs[state.shown];
  const title = comparison && runs.length !== 1 ? `Comparison of ${comparison[comparison.of].length} ${comparison.of}` : run.facts.run;
  const sections = [...(comparison ? comparisonPage(comparison) : []), ...(run ? [runs.length > 1 ? el("h2", { class: "run" }, run.facts.run) : null, ...runPage.build(run)] : [])].filter(Boolean);
  const index = el("nav", { "aria-label": "Parts of this page" }, linksTo(sections));
  const kinds = { hpo: "study", train: "training", collect: "collection" };
  const subtitle = run && !comparison ? `${kinds[run.facts.kind] ?? run.facts.kind} of ${run.facts.job}` : "";
  page.replaceChildren(
    el("header", {}, el("div", {}, el("h1", {}, title), el("p", { class: "subtitle" }, subtitle, linked(run?.facts.mlflow) ? [" · ", el("a", { href: run.facts.mlflow }, run.facts.server ?? "MLflow")] : null)), el("div", { class: "controls" }, switcher, state.switch)), index, ...sections);
  state.ended = performance.now();
}

async function start() {
  state.switch = theme(() => Chart.updateAll());
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const block = document.getElementById("columns");
  const buffer = await decode(block.textContent);
  block.remove();
  state.comparison = facts.comparison;
  state.runs = facts.runs.map((each) => Object.assign(new Run(each, buffer), { onselect: [] }));
  build();
  document.documentElement.dataset.ready = "content";
  performance.mark("content");
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // the page is on the screen before plotly.js runs
  if (document.readyState === "loading") await new Promise((done) => addEventListener("DOMContentLoaded", done)); // plotly.js is the end of the document
  const source = document.getElementById("plotly");
  document.head.append(el("script", {}, source.textContent));
  source.remove();
  performance.mark("plotly");
  for (const chart of Chart.all) if (chart.near) chart.mount();
  document.documentElement.dataset.ready = "charts";
  performance.mark("charts");
  if (facts.runs.some((each) => each.version !== undefined)) follow(state.runs[0]);
}
