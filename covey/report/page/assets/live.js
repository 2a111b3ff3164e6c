/* A run under way: new facts are read whenever the server says that there are some. */

const liveLabel = document.getElementById("live");
let isReading = false;
let isStale = false;

function showLive(text, kind) {
  liveLabel.hidden = false;
  liveLabel.textContent = text;
  liveLabel.className = `live ${kind}`;
}

const PATIENCE = 5000; // ms that a reader may look at a tip before the page is drawn again

/** Wait until no tip is shown, that is, until nobody points at a figure. */
async function tipsClosed() {
  const end = performance.now() + PATIENCE;
  while (performance.now() < end && document.querySelector(".tip:not([hidden])")) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
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
      if (!answer.ok) continue;
      const facts = await answer.json();
      await tipsClosed();
      setFacts(facts);
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
