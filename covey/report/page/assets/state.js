/* What is shown: the run, the seed, the node and the choices of every figure. */

const state = {
  facts: null,
  run: null,
  seed: null, // of the figures by node
  node: null, // {tier, id}
  colour: "metric", // of the nodes of the tree
  confused: null, // the model of the confusion matrix
  metric: null, // the key of the reader's choice
  axis: "rounds",
  span: "detail", // of the vertical axis
  sort: "value", // of devices
  bytes: "round",
  worst: false,
  all: false, // every model of a tier
  beside: new Set(), // keys of the runs drawn in grey
};

const DASHES = [["7 4", "dash"], ["1.5 4", "dots"], ["11 3 2 3", "dashdot"], ["3 3", "short"]];
const MOST_BESIDE = DASHES.length;

/** The runs that are drawn beside the one shown, in grey; each has its dashes on every page. */
function rivals() {
  const others = state.facts.runs.filter((run) =>
    state.beside.has(run.key) && run !== state.run && run.scored.length &&
    run.metric.key === state.run.metric.key);
  return others.slice(0, MOST_BESIDE).map((run) => {
    const order = state.facts.runs.filter((other) => state.beside.has(other.key)).indexOf(run);
    const [dash, kind] = DASHES[order % DASHES.length];
    const { population } = state.seed.facts;
    const paired = run.scored.find((seed) =>
      isKnown(population) && seed.facts.population === population && seed.hasNodes);
    const name = clipped(run.title, 28);
    return { run, paired: paired || null, model: run.first.main, name, dash, kind };
  });
}

/** The rivals that have the same devices with the same examples. */
function pairedRivals() {
  return rivals().filter((rival) => rival.paired);
}

/** The runs that are shown beside others at first: the baselines, or the first few. */
function usualBeside(facts) {
  const scored = facts.runs.filter((run) => run.scored.length);
  const baselines = scored.filter((run) => facts.json.baselines.includes(run.key));
  const wanted = baselines.length ? baselines : scored;
  return new Set(wanted.slice(0, MOST_BESIDE).map((run) => run.key));
}

/** Take a run, and of it the seed of this number or the first. */
function setRun(run, number) {
  state.run = run;
  state.seed = run.scored.find((seed) => seed.number === number) || run.first;
}
