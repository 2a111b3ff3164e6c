/* Every device, sorted: who is left behind, who gains by a model of its own, who loses. */

PARTS[50] = function devicesPart() {
  const { seed } = state;
  if (!seed?.hasNodes) return null;
  if (seed.metricReason) {
    const fix = "Name it in the file's metrics to have it here.";
    const note = `${capital(seed.metricReason)}. ${fix}`;
    return section("devices", "Who gains, who loses", note, null);
  }
  const { test } = seed.population;
  const sorts = deviceSorts(seed);
  if (!sorts.some(([sort]) => sort === state.sort)) state.sort = "value";
  const tools = sorts.length < 2 ? null : segmented("sort", "Sort devices by", sorts, state.sort,
    (sort) => {
      state.sort = sort;
      redraw();
    });
  const [low, high] = extent(test);
  const counts = low === high ? `${low} each` : `${low} to ${high} each`;
  const many = seed.run.scored.length > 1 ? ` Seed ${seed.number} is shown.` : "";
  const sampled = seed.run.facts.sample
    ? " Scores are samples: of each device, the last known one."
    : "";
  const note = `Every device on its own test examples (${counts}), every model in its chosen ` +
    `round. Click one to see it in the tree.${many}${sampled}`;
  const chart = deviceChart(() => devicesSpec(seed));
  markers.add(() => chart.mark(selectedDevice()));
  return section("devices", "Who gains, who loses", note, tools,
    h("div", { class: "panel" }, balance(seed), chart, devicesLegend(seed), deviceTable(seed)));
};

function deviceSorts(seed) {
  const sorts = [["value", capital(seed.run.metric.name)]];
  if (!gainReason(seed)) sorts.push(["gain", "Gain over global"]);
  const [rival] = pairedRivals();
  if (rival) sorts.push(["rival", `Gain over ${rival.name}`]);
  return sorts;
}

/** Devices from the worst to the best; those without a figure come last. */
function deviceOrder(seed, sort) {
  const [rival] = pairedRivals();
  const better = seed.run.metric.better;
  const key = (device) => {
    const span = [device, device + 1];
    const value = seed.value(seed.main, span);
    if (sort === "gain") return seed.gain(seed.main, seed.global, span);
    if (sort === "rival" && rival) {
      return seed.run.gain(value, rival.paired.value(rival.model, span));
    }
    return isKnown(value) ? better * value : null;
  };
  const keys = range(seed.devices).map(key);
  const known = range(seed.devices).filter((device) => isKnown(keys[device]));
  return known.sort((a, b) => keys[a] - keys[b] || a - b);
}

/* ---------- gains and losses, counted ---------- */

function balance(seed) {
  const bars = [];
  if (!gainReason(seed)) bars.push(balanceBar(seed, "global", seed, seed.global));
  for (const { paired, model, name } of pairedRivals()) {
    bars.push(balanceBar(seed, name, paired, model));
  }
  return bars.length ? h("div", { class: "balance" }, bars) : null;
}

function balanceBar(seed, name, other, model) {
  const counts = { gain: 0, even: 0, lose: 0 };
  for (let device = 0; device < seed.devices; device++) {
    const value = seed.deviceValue(seed.main, device);
    const gain = seed.run.gain(value, other.deviceValue(model, device));
    if (!isKnown(gain)) continue;
    if (Math.abs(gain) < 1e-9) counts.even++;
    else counts[gain > 0 ? "gain" : "lose"]++;
  }
  const all = sum(Object.values(counts));
  const bars = Object.entries(counts).filter(([, count]) => count).map(([word, count]) => {
    const isWide = count / all > (innerWidth < 620 ? 0.25 : 0.13);
    return h("span", { class: word, style: `flex:${count} 1 0`, title: `${count} ${word}` },
      isWide ? `${count} ${word}` : String(count));
  });
  const label = `against ${name}: ${counts.gain} devices gain, ${counts.even} are even, ` +
    `${counts.lose} lose`;
  return [h("div", {}, `against ${name}`),
    h("div", { class: "bars", role: "img", "aria-label": label }, bars)];
}

/* ---------- the chart ---------- */

function devicesSpec(seed) {
  const { metric } = seed.run;
  const ids = deviceOrder(seed, state.sort);
  const main = ids.map((device) => seed.deviceValue(seed.main, device));
  const base = gainReason(seed) ? null : ids.map((device) => seed.deviceValue(seed.global, device));
  const others = pairedRivals().map((rival) => ({
    ...rival,
    values: ids.map((device) => rival.paired.deviceValue(rival.model, device)),
  }));
  const layers = [];
  if (base) layers.push(...stems(seed, base, main));
  if (others.length) layers.push({ values: others[0].values, colour: "--other", look: "dash" });
  if (base) layers.push({ values: base, colour: "--server", look: "ring" });
  layers.push({ values: main, colour: modelColour(seed, seed.main), look: "dot" });
  const words = state.sort === "value" ? "the worst first" : "the largest loss first";
  return {
    label: `${capital(metric.name)} of every device, ${words}`,
    ids,
    y: devicesRange(metric, [main, base || [], ...others.map(({ values }) => values)].flat()),
    yText: metric.tick,
    cap: metric.cap,
    caption: `${plural(ids.length, "device")}, ${words}`,
    layers,
    tip: (i) => deviceTip(seed, ids[i], main[i], base?.[i], others, i),
    pick: selectDevice,
    marked: selectedDevice,
  };
}

/** Lines from the global model's figure to the device's own: gains and losses. */
function stems(seed, base, main) {
  const layer = (sign, colour) => ({
    values: base.map((value, i) => {
      const gain = seed.run.gain(main[i], value);
      return isKnown(gain) && sign * gain > 0 ? value : null;
    }),
    to: main,
    colour,
    look: "stem",
  });
  return [layer(1, "--gain"), layer(-1, "--loss")];
}

function devicesRange(metric, values) {
  const [low, high] = extent(values);
  if (metric.cap === 1 && metric.floor === 0) {
    return [Math.max(0, Math.floor(10 * (low - 0.01)) / 10), 1.005];
  }
  if (metric.floor === 0) return [0, high * 1.05 || 1];
  const pad = 0.05 * (high - low) || 0.05;
  return [low - pad, high + pad];
}

function deviceTip(seed, device, main, base, others, i) {
  const { metric } = seed.run;
  const name = seed.nodeName(seed.leaf, device);
  const out = [
    h("b", {}, `${name} · ${plural(seed.population.test[device], "test example")}`),
    tipLine(modelDot(seed, seed.main), seed.main, metric.text(main)),
  ];
  if (isKnown(base)) out.push(tipLine(modelDot(seed, seed.global), "global", metric.text(base)));
  for (const { name: other, kind, values } of others) {
    out.push(tipLine(swatch(kind, "--other"), other, metric.text(values[i])));
  }
  return out;
}

function devicesLegend(seed) {
  const key = (mark, text) => h("span", { class: "key" }, mark, text);
  const hollow = (colour) =>
    h("span", { class: "dot hollow", style: `border-color:var(${colour})` });
  const stem = (colour) => h("span", { class: "stem", style: `background:var(${colour})` });
  const keys = [key(modelDot(seed, seed.main), seed.main)];
  const hasGain = !gainReason(seed);
  if (hasGain) keys.push(key(hollow("--server"), "global"));
  const [rival] = pairedRivals();
  if (rival) keys.push(key(swatch("", "--other"), rival.name));
  if (hasGain) keys.push(key(stem("--gain"), "gains over global"), key(stem("--loss"), "loses"));
  return h("div", { class: "legend" }, keys);
}

/* ---------- the table ---------- */

/** The same figures as a table, made when it is opened. */
function deviceTable(seed) {
  const fill = (event) => {
    const details = event.target;
    if (!details.open || details.querySelector("table")) return;
    const columns = deviceColumns(seed);
    const ids = deviceOrder(seed, state.sort);
    const rows = ids.map((device) =>
      h("tr", {}, columns.map(({ of, text }) => h("td", {}, text(of(device))))));
    const saved = () => csv([columns.map(({ name }) => name),
      ...ids.map((device) => columns.map(({ of }) => of(device)))]);
    const button = h("button", {
      class: "small", type: "button", onclick: () => save(`${seed.run.key}-devices.csv`, saved()),
    }, "Save as CSV");
    details.append(h("p", {}, button),
      table("Table of devices", columns.map(({ name }) => name), rows));
  };
  return h("details", { ontoggle: fill, "data-keep": "devices" },
    h("summary", {}, "The same as a table"));
}

function deviceColumns(seed) {
  const { metric } = seed.run;
  const { train, test } = seed.population;
  const plain = (value) => (isKnown(value) ? String(value) : EMPTY);
  const column = (name, of, text = plain) => ({ name, of, text });
  const out = [
    column("device", (device) => seed.nodeName(seed.leaf, device)),
    column("train", (device) => train[device]),
    column("test", (device) => test[device]),
  ];
  for (const name of seed.modelNames().filter((model) => seed.sums(model))) {
    const of = (device) => seed.deviceValue(name, device);
    out.push(column(name, of, metric.text));
  }
  for (const { paired, model, name } of pairedRivals()) {
    out.push(column(name, (device) => paired.deviceValue(model, device), metric.text));
  }
  const counts = seed.facts.bytes?.[seed.leaf];
  if (counts) {
    out.push(column("bytes received", (device) => counts.down[device], bytes));
    out.push(column("bytes sent", (device) => counts.up[device], bytes));
  }
  const asked = seed.facts.asked?.[seed.leaf];
  if (asked) out.push(column("rounds asked", (device) => asked[device]));
  for (const { name, text, values } of ROOMS.flatMap((room) => room.columns(seed))) {
    out.push(column(name.toLowerCase(), (device) => values[device], text));
  }
  return out;
}
