/* One node: its figures, its curve, its labels, its bytes. */

function showNode(host, seed, { tier, id }) {
  const about = h("div", {},
    h("div", { class: "who" }, tierDot(seed, tier), seed.nodeTitle(tier, id)),
    h("p", { class: "note" }, nodeNote(seed, tier, id)),
    nodeFacts(seed, tier, id));
  const hasCurve = nodeSpec(seed, tier, id).series.some(({ ys }) => ys.length);
  const missing = seed.metricReason ||
    `${seed.run.metric.name} of several devices does not follow from theirs`;
  const curve = h("div", {},
    h("h3", {}, tier === seed.leaf ? "On its own test examples" : "On the devices below it"),
    hasCurve
      ? lines(() => nodeSpec(seed, tier, id))
      : h("p", { class: "note" }, `${capital(missing)}.`));
  host.replaceChildren(about, curve, nodeLabels(seed, seed.span(tier, id)));
  redraw(host);
}

function nodeNote(seed, tier, id) {
  const depth = seed.tiers.indexOf(tier);
  const [first, after] = seed.span(tier, id);
  const count = sum(seed.population.test.slice(first, after));
  const above = seed.tiers[depth - 1];
  const where = depth ? `under ${seed.nodeName(above, seed.parent(tier, id))}` : "the root";
  const tests = plural(count, "test example");
  if (tier !== seed.leaf) return `${where} · ${plural(after - first, "device")}, ${tests}`;
  if (!seed.run.metric.isCount || !count) return `${where} · ${tests}`;
  return `${where} · ${tests}, so one is ${percent(1 / count)} points`;
}

/** The models that matter to a node: its own, and those of the tiers above. */
function nodeModels(seed, tier) {
  const depth = seed.tiers.indexOf(tier);
  return seed.modelNames().filter((name) => {
    const modelDepth = seed.tiers.indexOf(seed.models[name].tier);
    return modelDepth <= depth || name === seed.personal;
  });
}

function nodeFacts(seed, tier, id) {
  const list = h("dl", { class: "facts" });
  const add = (mark, name, value, small) => list.append(
    h("dt", {}, mark, h("span", {}, name)),
    h("dd", {}, value, small ? h("small", {}, ` ${small}`) : null));
  modelFacts(add, seed, tier, id);
  list.append(h("div", { class: "rule" }));
  countFacts(add, seed, tier, id);
  byteFacts(add, seed, tier, id);
  if (tier === seed.leaf) roomFacts(add, seed, id);
  return list;
}

function modelFacts(add, seed, tier, id) {
  const span = seed.span(tier, id);
  const metric = seed.run.metric;
  const small = (tally) =>
    (metric.isCount && tier === seed.leaf && tally[1] ? `${tally[0]} of ${tally[1]}` : "");
  for (const name of nodeModels(seed, tier)) {
    if (!seed.sums(name)) continue;
    const value = metric.text(seed.value(name, span));
    add(modelDot(seed, name), name, value, small(seed.chosenTally(name, span)));
  }
  for (const { paired, model, name, kind } of pairedRivals()) {
    const value = metric.text(paired.value(model, span));
    add(swatch(kind, "--other"), name, value, small(paired.chosenTally(model, span)));
  }
}

function countFacts(add, seed, tier, id) {
  const span = seed.span(tier, id);
  const model = seed.modelOf(tier);
  const [right, count] = seed.chosenTally(model, span);
  if (seed.run.metric.isCount && count) {
    const [low, high] = wilson(right, count);
    add(null, "95 % interval", `${percent(low, 0)} to ${percent(high, 0)} %`);
  }
  add(null, "Training examples", whole(sum(seed.population.train.slice(...span))));
  const own = seed.models[seed.own[tier]];
  if (isKnown(own?.sparsity?.[id])) {
    add(null, "Non-zero weights", `${percent(own.sparsity[id])} %`);
  }
  if (tier === seed.leaf && own?.holds && !own.holds[id]) {
    add(null, "Own model", "none yet", "the global one counts");
  }
  const asked = seed.facts.asked?.[tier]?.[id];
  if (isKnown(asked)) add(null, "Asked in", `${asked} of ${seed.bytesByRound().length} rounds`);
}

function byteFacts(add, seed, tier, id) {
  const counts = seed.facts.bytes?.[tier];
  if (counts && counts.down[id] + counts.up[id]) {
    add(null, "Received", bytes(counts.down[id]));
    add(null, "Sent", bytes(counts.up[id]));
  }
  const below = seed.tiers[seed.tiers.indexOf(tier) + 1];
  if (!below || !seed.facts.bytes?.[below]) return;
  const children = range(seed.size(below)).filter((child) => seed.parent(below, child) === id);
  const total = sum(children.map((child) => nodeBytes(seed, below, child)));
  if (total) add(null, `To and from its ${below}s`, bytes(total));
}

function roomFacts(add, seed, id) {
  for (const { name, text, values } of ROOMS.flatMap((room) => room.columns(seed))) {
    add(null, name, text(values[id]));
  }
}

/** A model's curve over some devices: the rounds in which any was scored, and the chosen one. */
function nodeCurve(seed, model, span) {
  const values = seed.nodeRounds.map((_, index) => seed.value(model, span, index));
  const known = range(values.length).filter((index) => isKnown(values[index]));
  const mark = known.indexOf(seed.chosenIndex(model));
  return {
    xs: known.map((index) => seed.nodeRounds[index]),
    ys: known.map((index) => values[index]),
    mark: mark >= 0 ? mark : undefined,
  };
}

/** The curves of a node's models over the devices below it. */
function nodeSpec(seed, tier, id) {
  const span = seed.span(tier, id);
  const metric = seed.run.metric;
  const grey = pairedRivals().map(({ paired, model, name, dash, kind }) => ({
    name, dash, kind, ...nodeCurve(paired, model, span),
    colour: "--other", width: 1.4, strong: false, quiet: true, opacity: 0.8,
  }));
  const own = nodeModels(seed, tier).filter((name) => seed.sums(name)).reverse().map((name) => ({
    name: name,
    ...nodeCurve(seed, name, span),
    colour: modelColour(seed, name),
    width: name === seed.modelOf(tier) ? 2.4 : 1.6,
  }));
  const series = [...grey, ...own];
  const late = series.flatMap(({ ys }) => ys.slice(Math.floor(ys.length * 0.1)));
  const [low, high] = extent(late);
  return {
    height: 250,
    label: `${capital(metric.name)} of ${seed.nodeName(tier, id)} by round`,
    x: [seed.nodeRounds[0], seed.nodeRounds.at(-1)],
    y: padded(low, high, metric),
    cap: metric.cap,
    series,
    grid: seed.nodeRounds,
    yText: metric.tick,
    xText: String,
    xUnit: "rounds",
    integers: true,
    tipTitle: (round) => `Round ${round}`,
    tipText: metric.text,
  };
}

const MOST_LABELS = 12;

/** How many examples of each class a node has; of many classes, the most frequent. */
function nodeLabels(seed, [first, after]) {
  const { labels, classes } = seed.population;
  if (!labels) return h("div", {}, h("h3", {}, "Examples"), nodeParts(seed, [first, after]));
  const counts = classes.map((_, c) => sum(labels.slice(first, after).map((row) => row[c])));
  const most = Math.max(1, ...counts);
  let shown = range(classes.length);
  if (classes.length > MOST_LABELS) {
    shown = shown.filter((c) => counts[c]).sort((a, b) => counts[b] - counts[a]);
  }
  const rest = shown.length - MOST_LABELS;
  const rows = shown.slice(0, MOST_LABELS).map((c) => h("div", { class: counts[c] ? "" : "none" },
    h("span", { title: String(classes[c]) }, String(classes[c])),
    h("i", { style: `width:${(100 * counts[c]) / most}%` }),
    h("em", {}, whole(counts[c]))));
  return h("div", {}, h("h3", {}, "Labels it holds"), h("div", { class: "hist" }, rows),
    rest > 0 ? h("p", { class: "note" }, `and ${rest} more with fewer examples`) : null);
}

/** The sizes of the parts of the data, where there are no classes. */
function nodeParts(seed, span) {
  const parts = ["train", "validation", "test"].filter((part) => seed.population[part]);
  const counts = parts.map((part) => sum(seed.population[part].slice(...span)));
  const most = Math.max(1, ...counts);
  const rows = parts.map((part, i) => h("div", {}, h("span", {}, part),
    h("i", { style: `width:${(100 * counts[i]) / most}%` }), h("em", {}, whole(counts[i]))));
  return h("div", { class: "hist" }, rows);
}
