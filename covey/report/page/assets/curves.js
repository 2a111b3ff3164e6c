/* The curves of every tier's model, by rounds, bytes or what a room counts `of` a seed, if any. */

const AXES = {
  rounds: { text: "By round", unit: "rounds", of: (seed) => seed.rounds },
  bytes: { text: "By bytes sent", units: BYTES, of: (seed) => seed.bytesByRound() },
};

PARTS[30] = function curvesPart() {
  const { run, seed } = state;
  if (!run.scored.length) return null;
  if (axisReason(state.axis)) state.axis = "rounds";
  const axes = Object.entries(AXES)
    .filter(([, { of }]) => of(seed))
    .map(([axis, { text }]) => [axis, text, axisReason(axis)]);
  const set = (name) => (value) => {
    state[name] = value;
    redraw();
  };
  const tools = [
    segmented("axis", "Horizontal axis", axes, state.axis, set("axis")),
    segmented("span", "Range", [["detail", "Detail"], ["full", "From the start"]], state.span,
      set("span")),
    hasWorst(seed) ? checkbox("worst", "Worst tenth", state.worst, set("worst")) : null,
    seed.modelNames(true).length > seed.modelNames().length
      ? checkbox("all", "All models", state.all, set("all"))
      : null,
  ];
  const band = run.scored.length > 1
    ? ` Lines are means over ${run.scored.length} seeds, bands one standard deviation.`
    : " Rings and numbers: the chosen round.";
  return section("curves", "Every tier's model", run.metric.rule + band + run.labelNote, tools,
    h("div", { class: "panel" }, lines(curvesSpec), besideChoices()));
};

function axisReason(axis) {
  if (axis === "bytes" && !state.seed.traffic.sent) return "this run sends nothing";
  return AXES[axis].of(state.seed) ? null : "this run has no such figures";
}

function hasWorst(seed) {
  return seed.run.metric.isCount && seed.hasNodes && seed.devices >= 10;
}

/** Which other runs are drawn in grey. */
function besideChoices() {
  const others = state.facts.runs.filter((run) => run !== state.run && run.scored.length);
  if (!others.length) return null;
  const boxes = others.map((run) =>
    checkbox("beside", run.title, state.beside.has(run.key), (isOn) => {
      if (isOn) state.beside.add(run.key);
      else state.beside.delete(run.key);
      draw();
    }));
  const full = state.beside.size > MOST_BESIDE ? ` (the first ${MOST_BESIDE} are drawn)` : "";
  return h("div", { class: "beside" }, h("span", {}, `Beside it, in grey${full}`), boxes);
}

function curvesSpec() {
  const { run, axis } = state;
  const [scale, unit] = axisUnit(run, axis);
  const own = ownSeries(run, axis, scale);
  const end = Math.max(...own.flatMap((series) => series.xs));
  const series = [...rivals().map((rival) => rivalSeries(rival, axis, scale, end)), ...own];
  const start = axis === "rounds" ? own[0].xs[0] : 0;
  return {
    height: 380,
    label: curvesLabel(series, axis),
    x: [start, end],
    y: curvesRange(series, run.metric),
    cap: run.metric.cap,
    series,
    grid: own[0].xs,
    yText: run.metric.tick,
    xText: (value) => String(Number(value.toPrecision(4))),
    xUnit: unit,
    integers: axis === "rounds",
    tipTitle: (value) => (axis === "rounds" ? `Round ${value}` : `${short(value)} ${unit}`),
    tipText: run.metric.text,
  };
}

function axisUnit(run, axis) {
  const { units, unit } = AXES[axis];
  if (!units) return [1, unit];
  return unitOf(Math.max(...run.scored.map((seed) => seed.positions(axis).at(-1))), units);
}

function ownSeries(run, axis, scale) {
  const seed = state.seed;
  const out = [];
  for (const name of seed.modelNames(state.all).reverse()) {
    const { xs, ys, spreads } = run.curve(name, axis);
    const isOwn = seed.isOwn(name);
    const places = xs.map((x) => x / scale);
    if (state.worst && name === seed.main && hasWorst(seed)) out.push(worstSeries(name, places));
    out.push({
      name: name,
      tail: run.metric.bare(run.figure(name).mean),
      xs: places,
      ys,
      band: spreads,
      colour: modelColour(seed, name),
      width: isOwn ? 2.4 : 1.4,
      dash: isOwn ? null : "5 2",
      kind: isOwn ? "" : "dash",
      strong: isOwn,
      mark: run.scored.length === 1 ? seed.rounds.indexOf(seed.models[name].chosen) : undefined,
    });
  }
  return out;
}

/** The mean accuracy of the worst tenth of the devices, of the seed shown. */
function worstSeries(name, places) {
  const { seed, run } = state;
  const at = seed.nodeRounds.map((round) => seed.rounds.indexOf(round));
  return {
    name: run.scored.length > 1 ? `worst tenth, seed ${seed.number}` : "worst tenth",
    tail: percent(seed.models[name].worst),
    xs: at.map((index) => places[index]),
    ys: seed.nodeRounds.map((_, index) => worstTenth(seed, name, index)),
    colour: modelColour(seed, name),
    width: 1.2,
    opacity: 0.75,
    strong: false,
    late: 0.5,
  };
}

function worstTenth(seed, name, index) {
  const values = range(seed.devices)
    .map((device) => seed.value(name, [device, device + 1], index))
    .filter(isKnown);
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const count = Math.max(1, Math.round(sorted.length / 10));
  return sum(sorted.subarray(0, count)) / count;
}

/** Another run's main model; one that sends nothing is a level on the axis of bytes. */
function rivalSeries({ run, model, name, dash, kind }, axis, scale, end) {
  const value = run.figure(model).mean;
  const base = {
    name, dash, kind, tail: run.metric.bare(value), colour: "--other", width: 1.8, strong: false,
  };
  if (!AXES[axis].of(run.first)) return { ...base, xs: [], ys: [] };
  let { xs, ys } = run.curve(model, axis);
  if (axis !== "rounds" && !xs.at(-1)) {
    xs = [0, end * scale];
    ys = [value, value];
  }
  const inside = range(xs.length).filter((i) => xs[i] / scale <= end * 1.0001);
  const mark = run.scored.length === 1 && axis === "rounds"
    ? inside.indexOf(run.first.rounds.indexOf(run.first.models[model].chosen))
    : -1;
  return {
    ...base,
    xs: inside.map((i) => xs[i] / scale),
    ys: inside.map((i) => ys[i]),
    mark: mark >= 0 ? mark : undefined,
  };
}

/** The range of the axis; "detail" leaves out the first rounds, when models are still bad. */
function curvesRange(series, metric) {
  const values = [];
  for (const { ys, late, band } of series) {
    const first = state.span === "detail" ? Math.floor(ys.length * (late || 0.18)) : 0;
    ys.slice(first).forEach((value, i) => {
      if (!isKnown(value)) return;
      const spread = band?.[first + i] || 0;
      values.push(value - spread, value + spread);
    });
  }
  const [low, high] = extent(values);
  return padded(low, high, metric);
}

/** A little room above and below; at least two points of accuracy are shown. */
function padded(low, high, metric) {
  const least = metric.cap === 1 ? 0.02 : Math.abs(high) * 0.02 || 0.02;
  const pad = Math.max((high - low) * 0.06, (least - (high - low)) / 2);
  return [Math.max(metric.floor, low - pad), Math.min(metric.cap + 0.004, high + pad)];
}

function curvesLabel(series, axis) {
  const names = series.map(({ name, tail }) => `${name} ${tail}`).join(", ");
  const by = AXES[axis].text.toLowerCase();
  return `${capital(state.run.metric.name)} on test data, ${by}: ${names}`;
}
