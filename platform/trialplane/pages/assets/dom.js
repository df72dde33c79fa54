/* Elements of the page. Texts become text nodes; nothing here parses markup. */

/** An element with attributes, listeners (`onclick`) and children: texts or elements. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-")) element.setAttribute(key, String(value));
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/**
 * A labelled list of choices; `choices` are [value, text] pairs, or a function that returns them.
 * `renew` of the element asks the function for newer choices, and keeps the chosen one.
 */
function select(label, choices, chosen, onchange) {
  const list = el("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) });
  const fill = (value) => {
    const pairs = typeof choices === "function" ? choices() : choices;
    if (pairs.length === list.length) return; // an open list stays open
    list.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
    list.value = String(value);
  };
  fill(chosen);
  return Object.assign(el("label", { class: "control" }, el("span", {}, label), list), { renew: () => fill(list.value) });
}

function checkbox(label, checked, onchange) {
  const box = el("input", { type: "checkbox", checked, onchange: (event) => onchange(event.target.checked) });
  return el("label", { class: "control" }, box, el("span", {}, label));
}

/** A command with a button that copies it. */
function command(text, label = "") {
  const code = el("code", { tabindex: "0" }, text);
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}`, onclick: () => copy(text, code, button) }, "Copy");
  return el("div", { class: "command" }, label ? el("span", { class: "label" }, label) : null, code, button);
}

async function copy(text, code, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

/** A small table: a header, and rows of texts or elements. */
function table(header, rows, caption = "") {
  return el("div", { class: "wide" }, el("table", {},
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, header.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}

/** An address that the page may link to: a path only while its server is there, and not in a copy of the page. */
const linked = (address) => (address?.startsWith("/") && !location.protocol.startsWith("http") ? null : address);

const note = (text) => el("p", { class: "notice" }, text);

/** A section of the page, with a heading that the index links to. */
function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), children);
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Follows the system's theme until the user switches; calls `changed` after each change. */
function theme(changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("trialplane-theme"); } catch { /* an offline page may have no storage */ }
  const apply = () => {
    const name = chosen || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = name;
    button.textContent = name === "dark" ? "Light theme" : "Dark theme";
    changed();
  };
  const button = el("button", { type: "button", onclick: () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("trialplane-theme", chosen); } catch { /* as above */ }
    apply();
  } });
  dark.addEventListener("change", apply);
  document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  button.textContent = document.documentElement.dataset.theme === "dark" ? "Light theme" : "Dark theme";
  return button;
}
