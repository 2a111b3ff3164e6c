/* Every metric of every model in one table, and the confusion matrix. */

/** All metrics that were recorded; the one that is shown is marked. */
PARTS[20] = function metricsPart() {
  const { run } = state;
  if (!run.scored.length || run.metrics.length < 2) return null;
  const names = run.first.modelNames(true);
  const rows = run.metrics.map((metric) => metricRow(run, metric, names));
  const head = ["Metric", "Better", ...names.map(capital)];
  const note = `On the test examples of all devices, each model in its chosen round. The best of ` +
    "a row is bold. Choose one to see it in all figures below.";
  return section("metrics", "Metrics", note, null,
    h("div", { class: "panel" }, table("Table of metrics", head, rows)));
};

function metricRow(run, metric, names) {
  const isShown = metric === run.metric;
  const title = capital(metric.name);
  const name = isShown
    ? [title, h("span", { class: "dim" }, "  shown")]
    : h("button", { type: "button", onclick: () => chooseMetric(metric.key) }, title);
  const figures = names.map((model) => metricFigure(run, metric, model));
  const known = figures.map((figure) => figure.mean).filter(isKnown);
  const best = metric.better > 0 ? Math.max(...known) : Math.min(...known);
  const cells = figures.map((figure) => {
    const isBest = new Set(known).size > 1 && figure.mean === best;
    return h("td", {}, h("span", { class: isBest ? "best" : "" }, spreadText(metric, figure)));
  });
  const better = metric.better > 0 ? "higher" : "lower";
  return h("tr", { class: isShown ? "on" : "" },
    h("td", {}, name), h("td", { class: "dim" }, better), cells);
}

/** A metric of a model in its chosen round, over seeds. */
function metricFigure(run, metric, model) {
  return figureOf(run.scored.map((seed) => {
    const facts = seed.models[model];
    return metric === run.base ? facts?.value : facts?.metrics?.[metric.key]?.value;
  }));
}

/** A figure with its unit, and its deviation where there are several seeds. */
function spreadText(metric, { mean: middle, deviation: spread }) {
  if (spread === null || !isKnown(middle)) return metric.text(middle);
  const precision = metric.isCount ? percent(spread) : spread.toPrecision(2);
  return `${metric.bare(middle)} ± ${precision} ${metric.unit}`.trim();
}

/* ---------- the confusion matrix ---------- */

PARTS[60] = function confusionPart() {
  const { seed } = state;
  if (!seed) return null;
  const names = seed.modelNames(true).filter((name) => seed.models[name].confusion);
  if (!names.length) return null;
  if (!names.includes(state.confused)) state.confused = names[0];
  const tools = names.length < 2 ? null : segmented("confused", "Model",
    names.map((name) => [name, capital(name)]), state.confused, (name) => {
      state.confused = name;
      draw();
    });
  const many = seed.run.scored.length > 1 ? ` Seed ${seed.number} is shown.` : "";
  const note = "Test examples of all devices by class (rows) and predicted class (columns), in " +
    `the model's chosen round. The darker, the larger the share of the row.${many}`;
  return section("confusion", "Which classes are confused", note, tools,
    h("div", { class: "panel" }, confusionTable(seed, seed.models[state.confused].confusion)));
};

function confusionTable(seed, matrix) {
  const classes = seed.population?.classes?.map(String) || range(matrix.length).map(String);
  const rows = matrix.map((counts, actual) => {
    const all = sum(counts);
    const cells = counts.map((count, predicted) => {
      const title = `${classes[actual]} as ${classes[predicted]}`;
      return confusionCell(count, all, actual === predicted, title);
    });
    const recall = all ? `${percent(counts[actual] / all)} %` : EMPTY;
    return h("tr", {}, h("th", { scope: "row" }, clipped(classes[actual], 24)), cells,
      h("td", { class: "dim" }, recall));
  });
  const head = ["Class", ...classes.map((name) => clipped(name, 16)), "Recall"];
  return h("div", { class: "confusion" }, table("Confusion matrix", head, rows));
}

function confusionCell(count, all, isRight, title) {
  const share = all ? count / all : 0;
  const colour = isRight ? "--gain" : "--loss";
  const part = `${Math.round(70 * share)}%`;
  const fill = `color-mix(in srgb, var(${colour}) ${part}, transparent)`;
  return h("td", { style: `background:${fill}`, title: `${title}: ${whole(count)}` },
    h("span", { class: count ? "" : "dim" }, whole(count)));
}
