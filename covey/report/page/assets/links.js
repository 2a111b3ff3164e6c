/* Bytes per link, sparsity per layer, and devices that were not in training. */

PARTS[80] = function bytesPart() {
  const { seed } = state;
  if (!state.run.scored.length) return null;
  const links = Object.entries(seed.facts.links)
    .filter(([, link]) => sum(link.down) + sum(link.up));
  const name = "Bytes on the links";
  if (!links.length) return section("bytes", name, "This run sends nothing.", null);
  const set = (value) => {
    state.bytes = value;
    redraw();
  };
  const many = seed.run.scored.length > 1 ? ` Seed ${seed.number} is shown.` : "";
  const note = "Encoded bytes of training, all nodes of a link together; dashed, what the same " +
    `messages take as dense rows.${many}`;
  const tools = segmented("bytes", "Bytes", [["round", "Per round"], ["total", "Added up"]],
    state.bytes, set);
  return section("bytes", name, note, tools,
    h("div", { class: "two" }, links.map(([link, counts]) => linkPanel(link, counts))));
};

function linkPanel(name, { down, up, dense }) {
  const total = sum(down) + sum(up);
  const ends = name.split("-").join(" to ");
  const share = sum(dense) ? `, ${percent(total / sum(dense))} % of dense` : "";
  const note = `${bytes(total)} in all${share}; ${bytes(sum(down))} down, ${bytes(sum(up))} up`;
  return h("div", { class: "panel" }, h("h3", {}, ends), h("p", { class: "note below" }, note),
    lines(() => linkSpec(ends, { down, up, dense })));
}

function linkSpec(name, { down, up, dense }) {
  const shown = state.bytes === "total" ? running : (values) => values;
  const lower = shown(down);
  const both = shown(down.map((count, i) => count + up[i]));
  const full = shown(dense);
  const xs = range(down.length).map((i) => i + 1);
  const top = Math.max(...full, ...both);
  const [scale, unit] = unitOf(top, BYTES);
  const dashed = {
    name: "dense", xs, ys: full, colour: "--other", dash: "7 4", kind: "dash", width: 1.8,
    strong: false,
  };
  const series = [
    {
      name: "up", xs, ys: both, from: lower, area: 0.34, colour: "--ink2", width: 1.6,
      tipValue: (i) => both[i] - lower[i],
    },
    { name: "down", xs, ys: lower, area: 0.16, colour: "--ink3", width: 1.2, strong: false },
  ];
  return {
    height: 232,
    label: `Bytes from ${name} by round`,
    keepOrder: true,
    x: [1, xs.length],
    y: [0, top * 1.06],
    yText: (value) => (value ? `${Number((value / scale).toPrecision(3))} ${unit}` : "0"),
    xText: String,
    xUnit: "rounds",
    integers: true,
    tipTitle: (round) => `Round ${round}`,
    tipText: bytes,
    series: sum(dense) ? [dashed, ...series] : series,
  };
}

/* ---------- sparsity ---------- */

PARTS[100] = function layersPart() {
  const { run, seed } = state;
  if (!run.scored.length) return null;
  const names = seed.modelNames().filter((name) => Object.keys(seed.models[name].layers).length);
  if (!names.length) return null;
  const cuts = names.map((name) => `${name} ${short(seed.models[name].cut)}`).join(", ");
  const note = `The share of weights that are not zero, above the cut (${cuts}), in each model's ` +
    "chosen round.";
  const layers = Object.keys(seed.models[names[0]].layers);
  const rows = layers.map((layer) => [
    h("div", { class: "name" }, h("span", {}, layer),
      h("small", {}, `${whole(run.facts.slots[layer] ?? 0)} weights`)),
    h("div", {}, names.map((name) => layerBar(run, seed, name, layer))),
  ]);
  const keys = names.map((name) =>
    h("span", { class: "key" }, modelDot(seed, name), name));
  return section("layers", "Sparsity, layer by layer", note, null,
    h("div", { class: "panel" }, h("div", { class: "layers" }, rows),
      h("div", { class: "legend" }, keys)));
};

function layerBar(run, seed, name, layer) {
  const share = figureOf(run.scored.map((each) => each.models[name]?.layers[layer])).mean;
  const fill = `width:${100 * share}%;background:var(${modelColour(seed, name)})`;
  return h("div", { class: "row" },
    h("div", { class: "track", title: `${name}: ${percent(share)} %` },
      h("i", { style: fill })),
    h("span", {}, `${percent(share)} %`));
}

/* ---------- devices that were not in training ---------- */

const NEW_MODELS = { new_personal: "--device", new_edge: "--edge", new_global: "--server" };

PARTS[70] = function newcomersPart() {
  const { run, seed } = state;
  const newcomers = seed?.facts.newcomers;
  if (!newcomers) return null;
  const names = Object.keys(NEW_MODELS).filter((name) => newcomers.models[name]);
  if (!names.length) return null;
  const note = `${plural(newcomers.test.length, "device")} held out of training. Each gets the ` +
    "global model, the edge model that fits it best, and a model of its own after a few steps.";
  return section("newcomers", "New devices", note, null,
    h("div", { class: "panel" }, lines(() => newcomersSpec(names)), newcomersTable(names)));
};

/** A figure of a model on new devices, of the metric that is shown. */
function newFact(seed, name, fact) {
  const { metric, base } = seed.run;
  const model = seed.facts.newcomers?.models[name];
  return metric === base ? model?.[fact] : model?.metrics?.[metric.key]?.[fact];
}

function newcomersSpec(names) {
  const { run, seed } = state;
  const seeds = run.scored.filter((each) => each.facts.newcomers);
  const length = Math.min(...seeds.map((each) => each.rounds.length));
  const series = names.toReversed().map((name) => {
    const values = range(length).map((i) =>
      figureOf(seeds.map((each) => newFact(each, name, "curve")?.[i])));
    const figure = figureOf(seeds.map((each) => newFact(each, name, "value")));
    const { chosen } = seed.facts.newcomers.models[name];
    return {
      name: name.replace("new_", ""),
      tail: run.metric.bare(figure.mean),
      xs: seed.rounds.slice(0, length),
      ys: values.map((value) => value.mean),
      band: seeds.length > 1 ? values.map((value) => value.deviation || 0) : null,
      colour: NEW_MODELS[name],
      mark: seeds.length > 1 ? undefined : seed.rounds.indexOf(chosen),
    };
  });
  return {
    height: 260,
    label: `${capital(run.metric.name)} on the new devices by round`,
    x: [seed.rounds[0], seed.rounds[length - 1]],
    y: curvesRange(series, run.metric),
    cap: run.metric.cap,
    series,
    yText: run.metric.tick,
    xText: String,
    xUnit: "rounds",
    integers: true,
    tipTitle: (round) => `Round ${round}`,
    tipText: run.metric.text,
  };
}

/** Each new device with each model, in the models' chosen rounds. */
function newcomersTable(names) {
  const { run, seed } = state;
  const { newcomers } = seed.facts;
  const known = names.filter((name) => newcomers.models[name].sums);
  if (!known.length) return null;
  const value = (name, device) => {
    const total = newcomers.models[name].sums[device];
    const count = newcomers.test[device];
    return isKnown(total) && count ? run.base.of(total, count) : null;
  };
  const rows = range(newcomers.test.length).map((device) => h("tr", {},
    h("td", {}, newcomers.names?.[device] ?? `new device ${device}`),
    h("td", {}, String(newcomers.train[device])),
    h("td", {}, String(newcomers.test[device])),
    known.map((name) => h("td", {}, run.base.text(value(name, device))))));
  const head = ["device", "train", "test", ...known.map((name) => name.replace("new_", ""))];
  const summary = run.metric === run.base ? "" : `: ${run.base.name}`;
  return h("details", { "data-keep": "newcomers" },
    h("summary", {}, `Every new device${summary}`),
    table("Table of new devices", head, rows));
}
