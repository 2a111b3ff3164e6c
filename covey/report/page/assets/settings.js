/* The settings of the run, and the command that repeats it. */

PARTS[110] = function settingsPart() {
  const { run } = state;
  const other = state.facts.runs.find((each) => each !== run);
  const note = "Everything that decides the run" +
    (other ? `; marked where it differs from ${other.title}.` : ".");
  const theirs = other ? settingGroups(other) : {};
  const groups = Object.entries(settingGroups(run)).map(([group, settings]) => {
    const rows = Object.entries(settings).map(([key, value]) =>
      settingRow(key, value, theirs[group]?.[key]));
    if (!rows.length) return null;
    return h("div", {}, h("h3", {}, capital(group)), h("dl", { class: "facts" }, rows));
  });
  return section("settings", "Settings", note, null,
    h("div", { class: "panel" }, commandLine(run.facts.command),
      h("div", { class: "settings" }, groups)));
};

/** The tables of the file; its single keys are the table "run". Inner tables have dotted keys. */
function settingGroups(run) {
  const groups = { run: {} };
  for (const [key, value] of Object.entries(run.facts.settings)) {
    if (isTable(value)) groups[key] = flattened(value);
    else groups.run[key] = value;
  }
  return groups;
}

function isTable(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function flattened(settings, before = "") {
  const out = {};
  for (const [key, value] of Object.entries(settings)) {
    if (isTable(value)) Object.assign(out, flattened(value, `${before}${key}.`));
    else out[before + key] = value;
  }
  return out;
}

function settingRow(key, value, theirs) {
  const differs = theirs !== undefined && settingText(theirs) !== settingText(value);
  const tag = differs ? h("span", { class: "tag" }, "differs") : null;
  return [h("dt", {}, h("span", {}, key), tag), h("dd", {}, settingText(value))];
}

function settingText(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(settingText).join(", ") || "none";
  if (isTable(value)) {
    return Object.entries(value).map(([key, inner]) => `${key} = ${settingText(inner)}`).join(", ");
  }
  return String(value);
}

function commandLine(command) {
  const text = h("pre", {}, command);
  const button = h("button", { class: "small", type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    const isCopied = await copy(text);
    button.textContent = isCopied ? "Copied" : "Selected";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return h("div", { class: "command" }, text, button);
}

/** Copy the text of an element; where that is not allowed, select it. */
async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    const selection = getSelection();
    selection.selectAllChildren(element);
    return document.execCommand("copy");
  }
}
