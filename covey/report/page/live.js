/* A run under way: new facts are read whenever the server says that there are some. */

const liveLabel = document.getElementById("live");
let isReading = false;
let isStale = false;

function showLive(text, kind) {
  liveLabel.hidden = false;
  liveLabel.textContent = text;
  liveLabel.className = `live ${kind}`;
}

/** Read the facts once more; one request at a time. */
async function readFacts() {
  isStale = true;
  if (isReading) return;
  isReading = true;
  while (isStale) {
    isStale = false;
    try {
      const answer = await fetch("facts.json", { cache: "no-cache" });
      if (answer.ok) setFacts(await answer.json());
    } catch {
      showLive("no answer", "lost");
    }
  }
  isReading = false;
}

function follow() {
  const events = new EventSource("events");
  let wasLost = false;
  events.addEventListener("open", () => {
    showLive("live", "on");
    if (wasLost) readFacts(); // something may have happened meanwhile
    wasLost = false;
  });
  events.addEventListener("error", () => {
    showLive("connection lost", "lost");
    wasLost = true;
  });
  events.addEventListener("facts", readFacts);
  events.addEventListener("end", () => {
    events.close();
    readFacts();
    showLive("ended", "off");
  });
}

if (state.facts.json.live?.running) follow();
else showLive("ended", "off");
