/* The facts of runs (covey/report/facts.py), with what is looked up again and again. */

const TITLES = { rmse: "RMSE", mae: "MAE", r2: "R²", f1: "F1", auc: "AUC", ece: "ECE" };
const BOUNDED = /^(accuracy|balanced_accuracy|label_accuracy|f1|auc|top\d+)$/; // from 0 to 1
const RELATIVE = ["rmse", "mae", "loss", "perplexity"]; // a gain is told in per cent of the base
const RULES = {
  accuracy: "The share of test examples that are right, over all devices.",
  rmse: "The root of the mean squared error on test examples, over all devices; less is better.",
  loss: "The mean loss on test examples, over all devices; less is better.",
};

/**
 * How a metric is read: `of` is its value from a sum and a count, `better` the sign of progress,
 * `isCount` whether sums are numbers of right answers, `gain` the progress of a value over a base.
 */
function metricOf(key, higher) {
  const isCount = key === "accuracy";
  const isBounded = BOUNDED.test(key);
  const isRelative = RELATIVE.includes(key);
  const name = TITLES[key] || key.replaceAll("_", " ");
  const less = higher ? "" : "; less is better";
  const isFloored = isBounded || isRelative || key === "ece";
  const metric = {
    key,
    name,
    better: higher ? 1 : -1,
    isCount,
    isRelative,
    unit: isCount ? "%" : "",
    cap: isBounded || key === "r2" ? 1 : Infinity,
    floor: isFloored ? 0 : -Infinity,
    of: (total, count) => (key === "rmse" ? Math.sqrt(total / count) : total / count),
    bare: short,
    text: short,
    tick: short,
    gain: (value, base) => (isRelative ? 1 - value / base : (value - base) * (higher ? 1 : -1)),
    signed: isCount || isRelative ? (value) => signed(value) : signedShort,
    gainUnit: isCount ? "points" : isRelative ? "%" : "",
    rule: RULES[key] || `${capital(name)} on the test examples of all devices${less}.`,
  };
  if (!isCount) return metric;
  return {
    ...metric,
    bare: (value) => percent(value),
    text: (value) => (isKnown(value) ? `${percent(value)} %` : EMPTY),
    tick: (value) => `${Number((100 * value).toFixed(2))} %`,
  };
}

/** A mean over seeds and its standard deviation, null for one seed. */
function figureOf(values) {
  const numbers = values.filter(isKnown);
  return { mean: mean(numbers), deviation: deviation(numbers) };
}

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

/** A typed array from base64; `isUnknown` tells the entries that were not scored. */
function unpack(packed) {
  const text = atob(packed.data);
  const raw = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  return new ARRAYS[packed.dtype](raw.buffer);
}

const UNKNOWN = { u1: 255, u2: 65535, u4: 4294967295, f4: NaN };

/** One seed of a run: its tree, its models on every device, its bytes. */
class Seed {
  constructor(run, facts, population) {
    this.run = run;
    this.facts = facts;
    this.number = facts.seed;
    this.population = population;
    this.tiers = facts.tiers;
    this.top = facts.tiers[0];
    this.leaf = facts.tiers.at(-1);
    this.models = facts.models;
    this.rounds = facts.rounds;
    this.nodeRounds = facts.node_rounds || facts.rounds;
    this.devices = this.size(this.leaf);
    this.own = this.firstModels();
    this.personal = this.tiers.length > 1 ? this.own[this.leaf] || null : null;
    this.global = this.models.global ? "global" : null;
    this.main = this.personal || this.own[this.tiers.at(-2)] || this.global || null;
    this.unpacked = {};
    this.spans = null;
  }

  /** The number of nodes of a tier. */
  size(tier) {
    return this.facts.sizes[this.tiers.indexOf(tier)];
  }

  /** The model of each tier: "personal" on devices and "global" above, else the first it keeps. */
  firstModels() {
    const own = {};
    for (const name of ["personal", "global", ...Object.keys(this.models)]) {
      const model = this.models[name];
      if (model) own[model.tier] ??= name;
    }
    return own;
  }

  /** Names of models, those of the devices first; with the other models of a tier if wanted. */
  modelNames(all = false) {
    const depth = (name) => this.tiers.indexOf(this.models[name].tier);
    const names = Object.keys(this.models).filter((name) => all || this.isOwn(name));
    return names.sort((a, b) => depth(b) - depth(a) || this.isOwn(b) - this.isOwn(a));
  }

  isOwn(name) {
    return this.own[this.models[name].tier] === name;
  }

  /** Whether figures of single nodes can be shown. */
  get hasNodes() {
    return Boolean(this.population && this.facts.parents && this.main && this.sums(this.main));
  }

  nodeName(tier, id) {
    const names = this.facts.names?.[tier];
    if (names?.[id]) return String(names[id]);
    return this.size(tier) > 1 ? `${tier} ${id}` : tier;
  }

  /** The name as a heading; a name from the data stays as it is. */
  nodeTitle(tier, id) {
    const name = this.nodeName(tier, id);
    return this.facts.names?.[tier]?.[id] ? name : capital(name);
  }

  parent(tier, id) {
    return this.facts.parents[tier][id];
  }

  /** The devices under every node of a tier, as [first, after the last]. */
  span(tier, id) {
    this.spans ??= this.computeSpans();
    return this.spans[tier][id];
  }

  computeSpans() {
    let below = range(this.devices).map((device) => [device, device + 1]);
    const spans = { [this.leaf]: below };
    for (let depth = this.tiers.length - 1; depth > 0; depth--) {
      const above = range(this.facts.sizes[depth - 1]).map(() => null);
      this.facts.parents[this.tiers[depth]].forEach((parent, id) => {
        if (!below[id]) return;
        above[parent] = above[parent] ? [above[parent][0], below[id][1]] : [...below[id]];
      });
      below = above.map((span) => span || [0, 0]);
      spans[this.tiers[depth - 1]] = below;
    }
    return spans;
  }

  get everybody() {
    return [0, this.devices];
  }

  sums(model) {
    if (!this.models[model]?.sums) return null;
    this.unpacked[model] ??= unpack(this.models[model].sums);
    return this.unpacked[model];
  }

  /** The index of the chosen round among the rounds that nodes were recorded in. */
  chosenIndex(model) {
    const index = this.nodeRounds.indexOf(this.models[model].chosen);
    return index >= 0 ? index : this.nodeRounds.length - 1;
  }

  /** Sum and count over the devices of a span that were scored in a round. */
  tally(model, [first, after], index) {
    const sums = this.sums(model);
    const unknown = UNKNOWN[this.models[model].sums.dtype];
    const counts = this.population.test;
    const start = index * this.devices;
    let total = 0;
    let count = 0;
    for (let device = first; device < after; device++) {
      const value = sums[start + device];
      if (value === unknown || Number.isNaN(value)) continue;
      total += value;
      count += counts[device];
    }
    return [total, count];
  }

  /** As `tally` in the chosen round; of a sampled run, in the last known round up to it. */
  chosenTally(model, span) {
    const chosen = this.chosenIndex(model);
    const oldest = this.run.facts.sample ? 0 : chosen;
    for (let index = chosen; index >= oldest; index--) {
      const tally = this.tally(model, span, index);
      if (tally[1]) return tally;
    }
    return [0, 0];
  }

  /** A fact of a model; its figures are those of the metric that is shown. */
  fact(name, fact) {
    const model = this.models[name];
    const { metric, base } = this.run;
    if (!model || metric === base) return model?.[fact];
    const own = model.metrics?.[metric.key];
    if (["value", "last", "best", "curve", "error"].includes(fact)) return own?.[fact];
    return fact === "worst" ? undefined : model[fact];
  }

  /** Why no single device has the metric that is shown; null where devices have it. */
  get metricReason() {
    const { metric, base } = this.run;
    if (metric === base || this.models[this.main]?.metrics?.[metric.key]?.devices) return null;
    return `${metric.name} is not recorded for single devices`;
  }

  /** A metric that has no sums: known of one device and of all devices. */
  otherValue(model, [first, after], index) {
    if (after - first === 1) return this.deviceMetric(model, first, index);
    if (after - first !== this.devices) return null;
    if (!isKnown(index)) return this.fact(model, "value") ?? null;
    return this.fact(model, "curve")?.[this.rounds.indexOf(this.nodeRounds[index])] ?? null;
  }

  /** Of one device; of a sampled run without an index, in the last known round. */
  deviceMetric(model, device, index) {
    const { key } = this.run.metric;
    const packed = this.models[model].metrics?.[key]?.devices;
    if (!packed) return null;
    this.unpacked[`${model}/${key}`] ??= unpack(packed);
    const values = this.unpacked[`${model}/${key}`];
    const last = index ?? this.chosenIndex(model);
    const oldest = isKnown(index) || !this.run.facts.sample ? last : 0;
    for (let row = last; row >= oldest; row--) {
      const value = values[row * this.devices + device];
      if (isKnown(value)) return value;
    }
    return null;
  }

  /** The metric of a model over the devices under a node; null where no device was scored. */
  value(model, span, index) {
    if (!model || !this.sums(model)) return null;
    if (this.run.metric !== this.run.base) return this.otherValue(model, span, index);
    const [total, count] = isKnown(index)
      ? this.tally(model, span, index)
      : this.chosenTally(model, span);
    return count ? this.run.metric.of(total, count) : null;
  }

  deviceValue(model, device) {
    return this.value(model, [device, device + 1]);
  }

  /** The gain of one model over another on the devices under a node. */
  gain(model, base, span) {
    return this.run.gain(this.value(model, span), this.value(base, span));
  }

  /** What a node is served with: the model of its tier, or the nearest above. */
  modelOf(tier) {
    for (let depth = this.tiers.indexOf(tier); depth >= 0; depth--) {
      const name = this.own[this.tiers[depth]];
      if (name) return name;
    }
    return this.main;
  }

  /** Bytes of all links and rounds, and what dense models would have taken. */
  get traffic() {
    let sent = 0;
    let dense = 0;
    for (const link of Object.values(this.facts.links)) {
      sent += sum(link.down) + sum(link.up);
      dense += sum(link.dense);
    }
    return { sent, dense };
  }

  /** The position of every scored round on an axis: rounds, or what they used up until then. */
  positions(axis) {
    if (axis === "rounds") return this.rounds;
    const totals = running(AXES[axis].of(this));
    return this.rounds.map((round) => totals[Math.min(round, totals.length) - 1] ?? 0);
  }

  bytesByRound() {
    const links = Object.values(this.facts.links);
    if (!links.length) return [];
    return links[0].down.map((_, i) => sum(links.map((link) => link.down[i] + link.up[i])));
  }
}

/** A run: the same experiment for one or several seeds. */
class Run {
  constructor(facts, populations) {
    this.facts = facts;
    this.key = facts.key;
    this.title = facts.title;
    const metrics = facts.metrics || [{ name: facts.metric, higher: facts.metric === "accuracy" }];
    this.metrics = metrics.map(({ name, higher }) => metricOf(name, higher));
    this.base = this.metrics[0]; // that of the devices' sums
    this.seeds = facts.seeds.map((seed) => new Seed(this, seed, populations[seed.population]));
    this.scored = this.seeds.filter((seed) => seed.rounds.length && seed.main);
  }

  /** The metric that is shown: the reader's choice, or else that by which the run is judged. */
  get metric() {
    const key = state.metric ?? this.facts.shown;
    return this.metrics.find((metric) => metric.key === key) || this.base;
  }

  /** The seed whose tree and models stand for the run; undefined before any round is scored. */
  get first() {
    return this.scored[0];
  }

  /** What the names of models leave unsaid, such as the private layers they are scored with. */
  get labelNote() {
    const labels = Object.values(this.facts.labels || {});
    return labels.length ? ` In full: ${labels.join(", ")}.` : "";
  }

  /** The gain of a value over a base; null where either is unknown or the base is 0. */
  gain(value, base) {
    if (!isKnown(value) || !isKnown(base)) return null;
    if (this.metric.isRelative && !base) return null;
    return this.metric.gain(value, base);
  }

  /** The 95 % interval of a gain, paired over seeds or, of one, over devices; null if unknown. */
  gainInterval(model, other, base) {
    const mates = this.scored.map((seed) =>
      other.scored.find((each) => each.number === seed.number));
    if (mates.length === 1 && mates[0]) {
      return this.deviceInterval(this.first, model, mates[0], base);
    }
    const gains = this.scored.map((seed, i) =>
      this.gain(seed.fact(model, "value"), mates[i]?.fact(base, "value")));
    return studentInterval(gains.filter(isKnown));
  }

  /** Over devices: by the jackknife of the gain over all examples, as covey/report/summary.py. */
  deviceInterval(seed, model, mate, base) {
    const isPaired = seed.hasNodes && seed.facts.population === mate.facts.population &&
      mate.sums(base);
    if (!isPaired || this.metric !== this.base || this.facts.sample) return null;
    const tally = (span) => [...seed.chosenTally(model, span), ...mate.chosenTally(base, span)];
    const gain = ([total, count, others, counted]) =>
      this.gain(this.metric.of(total, count), this.metric.of(others, counted));
    const all = tally(seed.everybody);
    const without = range(seed.devices).map((device) => tally([device, device + 1]))
      .filter(([, count]) => count)
      .map((own) => gain(all.map((total, i) => total - own[i])));
    const shares = without.map((each) => gain(all) - (without.length - 1) * (each - mean(without)));
    return studentInterval(shares);
  }

  gainText(gain) {
    return isKnown(gain) ? `${this.metric.signed(gain)} ${this.metric.gainUnit}`.trim() : EMPTY;
  }

  /** The mean over seeds of a fact of a model, and its deviation. */
  figure(model, fact = "value") {
    return figureOf(this.scored.map((seed) => seed.fact(model, fact)));
  }

  /** The mean over seeds of a number of each seed. */
  total(of) {
    return figureOf(this.scored.map(of));
  }

  /** A figure as text, with its deviation where there are several seeds. */
  figureText({ mean: middle, deviation: spread }) {
    if (!isKnown(middle)) return EMPTY;
    const text = this.metric.bare(middle);
    if (spread === null) return text;
    const precision = this.metric.unit ? this.metric.bare(spread) : spread.toPrecision(2);
    return `${text} ± ${precision}`;
  }

  /** A model's curve: positions, means over seeds and deviations. */
  curve(model, axis) {
    const seeds = this.scored.filter((seed) => seed.models[model]);
    const length = Math.min(...seeds.map((seed) => seed.rounds.length));
    const places = seeds.map((seed) => seed.positions(axis));
    const points = range(length).map((i) => {
      const values = seeds.map((seed) => seed.fact(model, "curve")?.[i]).filter(isKnown);
      const place = mean(places.map((positions) => positions[i]));
      return { x: place, y: mean(values), spread: deviation(values) };
    });
    return {
      xs: points.map((point) => point.x),
      ys: points.map((point) => point.y),
      spreads: seeds.length > 1 ? points.map((point) => point.spread || 0) : null,
    };
  }
}

/** Everything on the page, from the JSON. */
class Facts {
  constructor(json) {
    this.json = json;
    this.title = json.title;
    this.runs = json.runs.map((run) => new Run(run, json.populations));
  }

  run(key) {
    return this.runs.find((run) => run.key === key);
  }
}

/* ---------- one hue and one shape per tier ---------- */

function tierColour(seed, tier) {
  const depth = seed.tiers.indexOf(tier);
  const fromBelow = seed.tiers.length - 1 - depth;
  if (depth <= 0) return "--server";
  return ["--device", "--edge", "--edge2"][fromBelow] || "--edge3";
}

function tierShape(seed, tier) {
  if (tier === seed.top) return "square";
  return tier === seed.leaf ? "" : "diamond";
}

function modelColour(seed, model) {
  return tierColour(seed, seed.models[model].tier);
}

/** A dot in the colour and the shape of a tier. */
function tierDot(seed, tier) {
  const colour = tierColour(seed, tier);
  return h("span", { class: `dot ${tierShape(seed, tier)}`, style: `background:var(${colour})` });
}

function modelDot(seed, model) {
  return tierDot(seed, seed.models[model].tier);
}
