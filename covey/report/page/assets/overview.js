/* The headline, the tiles and the table of runs. */

function overview() {
  const { run, seed } = state;
  const head = h("h1", {}, `${run.title}: ${state.facts.title}`);
  if (!run.scored.length) return [head, h("p", { class: "lead" }, waitingText(run))];
  return [
    head,
    h("p", { class: "note facts-line" }, factsLine(run, seed)),
    lead(run),
    tileRow(tiles(run)),
    seed.facts.note ? h("p", { class: "note warn" }, seed.facts.note) : null,
    run.facts.reason ? h("p", { class: "note warn" }, capital(run.facts.reason)) : null,
  ].filter(Boolean);
}

function waitingText(run) {
  const { reason, state: now } = run.facts;
  if (now === "running") return "No round has been scored yet.";
  return `This run has no scored round.${reason ? ` ${reason}` : ""}`;
}

/** One line with the size of everything. */
function factsLine(run, seed) {
  const parts = [seed.tiers.map((tier) => plural(seed.size(tier), tier)).join(", ")];
  parts.push(roundsText(run));
  parts.push(run.seeds.length > 1
    ? `${run.seeds.length} seeds, mean ± standard deviation`
    : `seed ${seed.number}`);
  if (seed.population) {
    const examples = `${whole(sum(seed.population.train))} training and ` +
      `${whole(sum(seed.population.test))} test examples`;
    parts.push(examples);
  }
  if (run.facts.sample) parts.push(`scored on ${whole(run.facts.sample.devices)} random devices`);
  parts.push(run.facts.protocol === "paper"
    ? "every model in its best round on test data, as in the paper (optimistic)"
    : `every model in the round that was best on validation${selectedBy(run)}`);
  return parts.join(" · ");
}

/** The metric that the file names to choose rounds by. */
function selectedBy(run) {
  const key = run.facts.settings?.select?.replace(/^-/, "");
  const metric = run.metrics.find((each) => each.key === key);
  return metric ? ` by ${metric.name}` : "";
}

function roundsText(run) {
  const { state: now, done, planned } = run.facts;
  if (!isKnown(done) || done >= planned) return plural(planned ?? run.first.rounds.at(-1), "round");
  const words = {
    running: "running", stopped: "stopped", diverged: "diverged", finished: "stopped early",
  };
  const word = words[now] ? `, ${words[now]}` : "";
  return `${whole(done)} of ${plural(planned, "round")}${word}`;
}

/** The result in two sentences. */
function lead(run) {
  const seed = run.first;
  const value = run.figure(seed.main).mean;
  const whose = seed.personal ? "each device's own model" : `the ${seed.main} model`;
  const shown = h("b", {}, run.metric.text(value));
  const opening = run.metric.isCount
    ? [shown, ` of test examples are right with ${whose}`]
    : [`The ${run.metric.name} on test examples${lessText(run.metric)} is `, shown,
      ` with ${whose}`];
  return h("p", { class: "lead" }, opening, comparisons(run, value), ". ", trafficText(run));
}

/** Which way is better, where the name of an error does not say it. */
function lessText(metric) {
  return metric.better < 0 && !metric.isRelative ? " (less is better)" : "";
}

/** How the main model does against the run's global model and against other runs. */
function comparisons(run, value) {
  const gains = [];
  const { main, global } = run.first;
  if (global && main !== global) gains.push([run, global, "the run's global model"]);
  for (const rival of rivals()) gains.push([rival.run, rival.model, rival.name]);
  const known = gains
    .map(([other, model, name]) =>
      [run.gain(value, other.figure(model).mean), name, run.gainInterval(main, other, model)])
    .filter(([gain]) => isKnown(gain));
  const first = known.findIndex(([, , ends]) => ends);
  return known.map(([gain, name, ends], i) => {
    const before = i === 0 ? ": " : i === known.length - 1 ? " and " : ", ";
    const { gainUnit, better } = run.metric;
    const isSaid = (i > 0 && gainUnit === "points") || !gainUnit;
    const unit = isSaid ? "" : ` ${gainUnit}`;
    const shown = run.metric.signed(better * gain);
    const over = i > first ? "" : `95 % over ${run.scored.length > 1 ? "seeds" : "devices"}: `;
    const sure = ends ? ` (${over}${intervalText(run.metric, ends)})` : "";
    return [before, h("b", {}, shown), `${unit} against ${name}${sure}`];
  });
}

/** The interval of a gain, and whether it tells two models apart. */
function intervalText(metric, ends) {
  const [low, high] = ends.map((end) => metric.better * end).sort((a, b) => a - b);
  const unsure = low <= 0 && high >= 0 ? ", not distinguishable" : "";
  return `${metric.signed(low)} to ${metric.signed(high)}${unsure}`;
}

function trafficText(run) {
  const sent = run.total((seed) => seed.traffic.sent).mean;
  const dense = run.total((seed) => seed.traffic.dense).mean;
  if (!sent) return "Nothing was sent.";
  const share = sent / dense;
  if (!dense || share > 0.995) return ["Links carried ", h("b", {}, bytes(sent)), "."];
  const rest = `, ${percent(share, 0)} % of what dense models would take.`;
  return ["Links carried ", h("b", {}, bytes(sent)), rest];
}

function tile(mark, name, value, unit, ...notes) {
  const lines = notes.filter(Boolean).map((note) => h("div", {}, note));
  return h("div", { class: "tile" },
    h("div", { class: "k" }, mark, name),
    h("div", { class: "v" }, value, unit ? h("small", {}, unit) : null),
    h("div", { class: "d" }, lines));
}

/** Tiles in one row, or in two where there are many. */
function tileRow(all) {
  const columns = all.length > 6 ? Math.ceil(all.length / 2) : all.length;
  return h("div", { class: "tiles", style: `--columns:${columns}` }, all);
}

function tiles(run) {
  const seed = run.first;
  const out = seed.modelNames().map((name) => modelTile(run, seed, name));
  out.push(linkTile(run));
  out.push(...ROOMS.map((room) => room.tile(run)));
  if (seed.facts.newcomers) out.push(newcomerTile(run));
  out.push(sparsityTile(run, seed));
  return out.filter(Boolean);
}

function modelTile(run, seed, name) {
  const count = seed.size(seed.models[name].tier);
  const { mean: value, deviation: spread } = run.figure(name);
  const worst = run.figure(name, "worst").mean;
  const notes = [
    interval(run, seed, name, spread),
    isKnown(worst) ? `worst tenth ${percent(worst)} %` : null,
    run.seeds.length > 1 ? null : `in round ${seed.models[name].chosen}`,
  ];
  const title = `${capital(name)} model${count > 1 ? "s" : ""}`;
  return tile(modelDot(seed, name), title, run.metric.bare(value), run.metric.unit, ...notes);
}

/** How sure a figure is: over seeds, over sampled devices or over test examples. */
function interval(run, seed, name, spread) {
  if (spread !== null) {
    return `± ${run.metric.unit ? percent(spread) : spread.toPrecision(2)} over seeds`;
  }
  const error = seed.fact(name, "error");
  const r2 = run.metric.key === "rmse" ? seed.models[name].r2 : null;
  if (isKnown(error)) return `standard error ${run.metric.text(error)}`;
  if (isKnown(r2)) return `R² ${r2.toFixed(3)}`;
  if (!run.metric.isCount || !seed.hasNodes || !seed.sums(name)) return null;
  const [right, count] = seed.chosenTally(name, seed.everybody);
  const [low, high] = wilson(right, count);
  return `${percent(low)} to ${percent(high)} (95 %)`;
}

function linkTile(run) {
  const sent = run.total((seed) => seed.traffic.sent).mean;
  const dense = run.total((seed) => seed.traffic.dense).mean;
  const [value, unit] = amountParts(sent, BYTES);
  const rounds = run.first.facts.links && run.first.bytesByRound().length;
  if (!sent) return tile(null, "On the links", "0", "", "nothing is sent");
  const notes = [dense ? `${percent(sent / dense)} % of dense` : null];
  return tile(null, "On the links", value, unit, ...notes, `${bytes(sent / rounds)} a round`);
}

function sparsityTile(run, seed) {
  const share = run.figure(seed.main, "nonzeros").mean;
  const kind = seed.personal ? "a personal" : "the global";
  const size = `of ${whole(run.facts.parameters)} in ${kind} model`;
  const time = `${duration(run.total((each) => each.facts.seconds).mean)} of computing`;
  return tile(null, "Non-zero weights", percent(share), "%", size, time);
}

function newcomerTile(run) {
  const models = run.first.facts.newcomers.models;
  const name = ["new_personal", "new_edge", "new_global"].find((model) => models[model]);
  if (!name) return null;
  const value = mean(run.scored.map((seed) => newFact(seed, name, "value"))
    .filter(isKnown));
  const count = run.first.facts.newcomers.test.length;
  const kind = name.replace("new_", "");
  const note = `${plural(count, "device")} held out of training`;
  return tile(null, "New devices", run.metric.bare(value), run.metric.unit, `${kind} model`, note);
}

/* ---------- runs side by side ---------- */

PARTS[10] = function runsPart() {
  const runs = state.facts.runs;
  if (runs.length < 2) return null;
  const names = modelColumns(runs);
  const others = ROOMS.filter((room) => runs.some((run) => room.cell(run) !== EMPTY));
  const metric = state.run.metric;
  const head = ["Run", "By round", ...names.map(capital),
    ...(metric.isCount ? ["Worst tenth"] : []),
    "Sent", "Of dense", "Non-zero", "Gradients", "Computing", ...others.map(({ head }) => head)];
  const best = Object.fromEntries(names.map((name) => [name, bestOf(runs, name)]));
  const rows = runs.map((run) => runRow(run, names, best, others));
  const less = metric.better > 0 ? "" : " (less is better)";
  const other = `${capital(metric.name)} on test data${less}`;
  const what = metric.isCount ? "Test accuracy in %" : other;
  const note = `${what}, each model in its chosen round. The best of a column is bold.`;
  return section("runs", "Runs side by side", note, null,
    h("div", { class: "panel" }, table("Table of runs", head, rows)));
};

/** The models of all runs, those of devices first and those of the server last. */
function modelColumns(runs) {
  const depths = new Map();
  for (const run of runs) {
    for (const name of run.scored.length ? run.first.modelNames() : []) {
      const { tiers, models } = run.first;
      const depth = tiers.indexOf(models[name].tier);
      const height = depth ? tiers.length - 1 - depth : 99;
      depths.set(name, Math.max(depths.get(name) ?? 0, height));
    }
  }
  return [...depths.keys()].sort((a, b) => depths.get(a) - depths.get(b));
}

function bestOf(runs, name) {
  const metric = state.run.metric;
  const alike = runs.filter((run) => run.metric.key === metric.key);
  const values = alike.map((run) => run.figure(name).mean).filter(isKnown);
  if (values.length < 2) return null;
  return metric.better > 0 ? Math.max(...values) : Math.min(...values);
}

function runRow(run, names, best, others) {
  const isShown = run === state.run;
  const title = isShown
    ? [run.title, h("span", { class: "dim" }, "  shown")]
    : h("button", { type: "button", onclick: () => choose(run) }, run.title);
  if (!run.scored.length) {
    const cell = h("td", { class: "dim", colspan: 99 }, "no scored round yet");
    return h("tr", { class: isShown ? "on" : "" }, h("td", {}, title), cell);
  }
  const { main } = run.first;
  const sent = run.total((seed) => seed.traffic.sent).mean;
  const dense = run.total((seed) => seed.traffic.dense).mean;
  const cells = [title, spark(run), ...names.map((name) => modelCell(run, name, best[name]))];
  if (state.run.metric.isCount) cells.push(run.figureText(run.figure(main, "worst")));
  cells.push(sent ? bytes(sent) : "0", sent && dense ? `${percent(sent / dense, 0)} %` : EMPTY);
  cells.push(`${percent(run.figure(main, "nonzeros").mean, 0)} %`);
  cells.push(whole(run.total((seed) => seed.facts.gradients).mean));
  cells.push(duration(run.total((seed) => seed.facts.seconds).mean));
  cells.push(...others.map(({ cell }) => cell(run)));
  const row = cells.map((cell) => h("td", { class: cell === EMPTY ? "dim" : "" }, cell));
  return h("tr", { class: isShown ? "on" : "" }, row);
}

function modelCell(run, name, best) {
  const figure = run.figure(name);
  if (!isKnown(figure.mean) || run.metric.key !== state.run.metric.key) return EMPTY;
  return h("span", { class: figure.mean === best ? "best" : "" }, run.figureText(figure));
}

/** The main model's curve, small and without axes; all runs have one scale. */
function spark(run) {
  const { ys } = run.curve(run.first.main, "rounds");
  const all = state.facts.runs
    .filter((other) => other.scored.length && other.metric.key === run.metric.key)
    .flatMap((other) => other.curve(other.first.main, "rounds").ys);
  const [low, high] = extent(all);
  const width = 90 / Math.max(1, ys.length - 1);
  const y = (value) => 22 - (20 * (value - low)) / (high - low || 1);
  const known = range(ys.length).filter((i) => isKnown(ys[i]));
  const point = (i) => `${(1 + i * width).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
  const d = known.map((i, k) => `${k ? "L" : "M"}${point(i)}`);
  return s("svg", { width: 92, height: 24, viewBox: "0 0 92 24", "aria-hidden": "true" },
    s("path", {
      d: d.join(""),
      fill: "none",
      stroke: `var(${modelColour(run.first, run.first.main)})`,
      "stroke-width": 1.6,
      "stroke-linecap": "round",
    }));
}
