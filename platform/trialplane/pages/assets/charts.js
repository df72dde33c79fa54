/* Charts by plotly.js. Only those near the screen are mounted: a browser has about 16 WebGL contexts, and drops the oldest. */

const CONTEXTS = 8;
const WEBGL_FROM = 2000; // points; SVG draws fewer as fast, and sharper
const OKABE_ITO = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999"];
// Each color as a theme shows it: distinct for color-blind readers too, and with a contrast of 3:1 to the theme's panels.
const THEME_COLORS = {
  "light": ["#0072B2", "#7A4A00", "#009E73", "#D55E00", "#CC79A7", "#5E35B1", "#2F3300", "#555555"],
  "dark": ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#CCCCCC"]
};
const STATES = {
  COMPLETE: { color: "#0072B2", symbol: "circle" },
  PRUNED: { color: "#E69F00", symbol: "triangle-down" },
  FAILED: { color: "#D55E00", symbol: "x" },
  RUNNING: { color: "#009E73", symbol: "diamond-open" },
  LOST: { color: "#CC79A7", symbol: "cross" },
  PAUSED: { color: "#56B4E9", symbol: "square-open" },
};
// Points in WebGL have the pixels of the screen: plotly.js would draw four times as many, which takes long without a GPU.
const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], plotGlPixelRatio: devicePixelRatio };

/** A text as plotly.js shows it unchanged: it reads some tags in texts. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** A color scale whose lightness grows evenly, so that color-blind readers can use it: Cividis on a dark background. Its ends stand out from the background. */
const scale = () => document.documentElement.dataset.theme !== "dark" ? [[0, "#00224e"], [0.5, "#6a4f6e"], [1, "#d67a2c"]]
  : [[0, "#66728f"], [0.33, "#7c7b78"], [0.67, "#bcae6c"], [1, "#fee838"]];

/** Whether to reverse the color scale, so that good values stand out from the background. */
const reversed = (objective) => (objective.sign > 0) === (document.documentElement.dataset.theme === "dark");

/** A color of the palette as the theme shows it. */
const shade = (color) => THEME_COLORS[document.documentElement.dataset.theme === "dark" ? "dark" : "light"][OKABE_ITO.indexOf(color)] ?? color;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layout(options) {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
  const { xaxis, yaxis, ...rest } = options;
  const numbers = (type) => (type === "log" ? { exponentformat: "power" } : { exponentformat: "none", separatethousands: true });
  const titled = ({ title, ...more } = {}) => ({ ...axis, ...numbers(more.type), ...(title ? { title: { text: plain(title) } } : {}), ...more });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--text"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 60, r: 20, t: 20, b: 50 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--strong") },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemsizing: "constant" },
    xaxis: titled(xaxis),
    yaxis: titled(yaxis),
    uirevision: [xaxis, yaxis].map((each) => `${each?.title} ${each?.type}`).join(), // keeps zooms while the axes stay the same
    ...rest,
  };
}

/** Whether the browser has WebGL, as far as is known: to ask for it takes as long as to draw a chart. Without it, many points are drawn slowly. */
let hasWebgl = true;

/** A trace of points or lines, in WebGL when there are many. */
function scatter(trace) {
  const size = trace.x.length;
  return { type: size > WEBGL_FROM && hasWebgl ? "scattergl" : "scatter", hoverinfo: "text", ...trace };
}

const contextsOf = (traces) => traces.some((trace) => trace.type === "scattergl") ? 2 : 0;

/**
 * A chart that is drawn when it comes near the screen, and dropped when it is far.
 * `draw` returns {data, layout} each time; `ready` is called with the element after each drawing.
 */
class Chart {
  static all = new Set();
  static observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.chart.near = entry.isIntersecting;
      if (!entry.isIntersecting && themeOnScreen === null) entry.target.chart.unmount();
    }
    for (const chart of Chart.all) if (chart.near) chart.mount();
  }, { rootMargin: "250px" });

  constructor(label, height, draw, ready = () => {}) {
    this.element = el("div", { class: "chart", role: "img", "aria-label": label });
    this.element.style.height = `${height}px`;
    this.element.chart = this;
    Object.assign(this, { draw, ready, near: false, contexts: 0, mounted: false, parts: null });
    Chart.all.add(this);
    Chart.observer.observe(this.element);
  }

  static get used() {
    let used = 0;
    for (const chart of Chart.all) if (chart.mounted) used += chart.contexts;
    return used;
  }

  mount(isPrinted = false) {
    if (this.mounted || typeof Plotly === "undefined" || !this.element.isConnected) return;
    const { data, layout } = this.draw();
    const contexts = contextsOf(data);
    if (!isPrinted && Chart.used + contexts > CONTEXTS) return;
    Object.assign(this, { mounted: true, contexts });
    this.element.replaceChildren();
    Plotly.newPlot(this.element, data, layout, CONFIG).then(() => {
      if (hasWebgl && this.element.querySelector(".no-webgl")) {
        hasWebgl = false;
        this.unmount(); // with the notice that plotly.js puts over the chart
        return this.mount();
      }
      performance.mark("chart"); // as benchmarks measure
      if (this.mounted) this.ready(this.element);
    }, (error) => { if (this.mounted) throw error; }); // else it was dropped at once
  }

  unmount() {
    if (this.mounted) Plotly.purge(this.element);
    this.mounted = false;
    this.element.replaceChildren(); // also without a picture
  }

  /** Draws for paper. A chart in WebGL becomes a picture: of more than some, contexts would be lost, and browsers print the frame before. */
  print() {
    const isShown = this.mounted;
    if (isShown) this.update();
    else this.mount(true);
    if (!this.mounted || !this.contexts) return;
    const picture = this.element.cloneNode(true), canvases = this.element.querySelectorAll("canvas");
    picture.querySelectorAll("canvas").forEach((canvas, i) => canvas.getContext("2d").drawImage(canvases[i], 0, 0));
    if (isShown) this.parts = [...this.element.childNodes];
    else this.unmount();
    this.element.replaceChildren(...picture.childNodes);
  }

  /** Draws for the screen again, and drops a picture of a chart that is not near. */
  endPrint() {
    if (this.parts) this.element.replaceChildren(...this.parts);
    this.parts = null;
    if (this.near || this.mounted) this.update();
    else this.unmount();
  }

  /** Draws again, for other choices, a new theme or newer data. */
  update() {
    if (!this.mounted) return this.mount();
    const { data, layout } = this.draw();
    this.contexts = contextsOf(data);
    return Plotly.react(this.element, data, layout, CONFIG);
  }

  /** Changes the style of the element, and fits the drawing into it. */
  resize(style) {
    const before = this.element.style.cssText;
    Object.assign(this.element.style, style);
    if (this.mounted && this.element.style.cssText !== before) Plotly.Plots.resize(this.element);
  }

  static updateAll() {
    for (const chart of Chart.all) chart.update();
  }

  /** Forgets the charts of a part of the page that is about to go. */
  static drop(part) {
    for (const chart of Chart.all) {
      if (!part.contains(chart.element)) continue;
      Chart.observer.unobserve(chart.element);
      chart.unmount();
      Chart.all.delete(chart);
    }
  }
}

let themeOnScreen = null; // while the page is printed, which is in the light theme

addEventListener("beforeprint", () => {
  themeOnScreen = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  for (const chart of Chart.all) chart.print(); // also those that are not near the screen
});

addEventListener("afterprint", () => {
  document.documentElement.dataset.theme = themeOnScreen;
  themeOnScreen = null;
  for (const chart of Chart.all) chart.endPrint();
});
