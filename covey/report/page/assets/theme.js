/* The theme, before anything is painted. */

const THEME_KEY = "covey-theme";
const darkMedia = matchMedia("(prefers-color-scheme: dark)");

/** What the reader chose before, or what the system prefers. */
function usualTheme() {
  try {
    const saved = localStorage.getItem(THEME_KEY);
    if (saved === "dark" || saved === "light") return saved;
  } catch {
    // storage may be forbidden
  }
  return darkMedia.matches ? "dark" : "light";
}

document.documentElement.dataset.theme = usualTheme();
