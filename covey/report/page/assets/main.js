/* The page: its header, its parts in order, the theme. */

const mainElement = document.getElementById("top");
const runPicker = document.getElementById("run");
const seedPicker = document.getElementById("seed");
const metricPicker = document.getElementById("metric");

/** Draw everything for the run and seed of the state; scroll and open tables stay. */
function draw() {
  const height = scrollY;
  const open = [...document.querySelectorAll("details[open]")].map((each) => each.dataset.keep);
  const focus = focusKey();
  figures.clear();
  fillPickers();
  mainElement.replaceChildren(...overview());
  PARTS.forEach((part) => {
    const element = part();
    if (element) mainElement.append(element);
  });
  mainElement.append(footer());
  redraw();
  for (const each of document.querySelectorAll("details")) {
    each.open = open.includes(each.dataset.keep);
  }
  document.title = `${state.run.title} · ${state.facts.title} · covey`;
  scrollTo(0, height);
  restoreFocus(focus);
}

function footer() {
  const { made_by: maker, live } = state.facts.json;
  const count = plural(state.facts.runs.length, "run");
  const promise = live ? "" : " This file asks the network for nothing.";
  return h("footer", {}, `Made by ${maker} from the records of ${count}.${promise}`);
}

/** The control that has the focus, to find it again after drawing. */
function focusKey() {
  const element = document.activeElement;
  if (!mainElement.contains(element)) return null;
  if (element.dataset?.node) return `[data-node="${CSS.escape(element.dataset.node)}"]`;
  if (element.name) return `input[name="${element.name}"]:checked, input[name="${element.name}"]`;
  return null;
}

function restoreFocus(key) {
  if (key) mainElement.querySelector(key)?.focus({ preventScroll: true });
}

function fillPickers() {
  const { facts, run, seed } = state;
  const options = facts.runs.map((each) => h("option", { value: each.key }, each.title));
  runPicker.replaceChildren(...options);
  runPicker.value = run.key;
  document.getElementById("run-label").hidden = facts.runs.length < 2;
  seedPicker.replaceChildren(...run.scored.map((each) =>
    h("option", { value: String(each.number) }, `seed ${each.number}`)));
  seedPicker.value = String(seed?.number);
  document.getElementById("seed-label").hidden = run.scored.length < 2;
  metricPicker.replaceChildren(...run.metrics.map(({ key, name }) =>
    h("option", { value: key }, name)));
  metricPicker.value = run.metric.key;
  document.getElementById("metric-label").hidden = run.metrics.length < 2;
}

/** Show another run. */
function choose(run) {
  setRun(run, state.seed?.number);
  history.replaceState(null, "", `#run=${encodeURIComponent(run.key)}`);
  draw();
}

/** Show another metric, in the tree too. */
function chooseMetric(key) {
  state.metric = key;
  state.colour = "metric";
  draw();
}

/** Take new facts; the run, the seed and the node that are shown stay. */
function setFacts(json) {
  const known = new Set(state.facts?.runs.map((run) => run.key));
  const facts = new Facts(json);
  const run = facts.run(state.run?.key ?? wantedRun()) || facts.runs[0];
  state.facts = facts;
  setRun(run, state.seed?.number);
  for (const key of usualBeside(facts)) if (!known.has(key)) state.beside.add(key);
  draw();
}

function wantedRun() {
  const match = location.hash.match(/run=([^&]+)/);
  try {
    return match ? decodeURIComponent(match[1]) : undefined;
  } catch {
    return undefined; // a broken address
  }
}

/* ---------- light and dark ---------- */

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  treeView?.paint();
}

document.getElementById("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // the choice lasts as long as the page
  }
  setTheme(theme);
});
darkMedia.addEventListener("change", () => setTheme(usualTheme()));
addEventListener("beforeprint", () => setTheme("light"));
addEventListener("afterprint", () => setTheme(usualTheme()));
runPicker.addEventListener("change", () => choose(state.facts.run(runPicker.value)));
metricPicker.addEventListener("change", () => {
  chooseMetric(metricPicker.value);
});
seedPicker.addEventListener("change", () => {
  setRun(state.run, Number(seedPicker.value));
  draw();
});

setFacts(JSON.parse(document.getElementById("data").textContent));
performance.mark("drawn");
