/* A page that a server keeps up to date: it asks for what is newer, and keeps all that the user has chosen. */

const INTERVAL = 1000; // milliseconds between two questions

/** Takes newer content into a run. Its columns stay the same objects, which charts and the table hold. */
function renew(run, newer) {
  const chosen = new Set(Array.from(run.selected, (row) => run.trial(row)));
  for (const [name, columns] of newer.tables) {
    const old = run.tables.get(name) ?? [];
    newer.tables.set(name, columns.map((column) => {
      const same = old.find((each) => each.name === column.name && each.category === column.category);
      return same ? Object.assign(same, { texts: column.texts, data: column.data, isExact: column.isExact }) : column;
    }));
  }
  const same = (column) => newer.tables.get("trials").find((each) => each.name === column.name && each.category === column.category);
  const { selected, onselect, table, objectives } = run;
  Object.assign(run, newer, { params: newer.params.map(same), metrics: newer.metrics.map(same), rows: null, selected, onselect, table, objectives });
  for (const objective of objectives) objective.column = run.metrics.find((metric) => metric.name === objective.metric);
  selected.clear();
  for (const trial of chosen) if (run.rowOf(trial) !== undefined) selected.add(run.rowOf(trial));
}

async function follow(run) {
  for (;;) {
    await new Promise((done) => setTimeout(done, INTERVAL));
    if (document.hidden) continue;
    let content;
    try {
      const answer = await fetch(`${location.pathname}/data?after=${run.facts.version}`);
      if (!answer.ok) throw new Error(await answer.text());
      content = await answer.json();
    } catch {
      document.documentElement.dataset.live = "lost";
      continue;
    }
    document.documentElement.dataset.live = "followed";
    if (content) renew(run, new Run(content.runs[0], await decode(content.block), run));
    else if (!run.behind || run.behind.contains(document.activeElement)) continue;
    runPage.renew(run);
    for (const chart of Chart.all) if (chart.mounted || chart.near) chart.update();
  }
}

start();
