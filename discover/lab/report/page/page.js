const DATA = JSON.parse(document.getElementById("report-data").textContent);
const names = DATA.series.map(s => s.name);
let shown = names.slice(), log = false;
const views = {};
// Hovering shows the optimizers in the order of the table, however the chart lists them.
function tooltipOrder(value) {
  if (value === null || typeof value !== "object") return value;
  const rest = Object.keys(value).filter(k => k !== "step" && !names.includes(k));
  const keys = ["step", ...names, ...rest].filter(k => k in value && value[k] !== null && value[k] !== undefined);
  return Object.fromEntries(keys.map(k => [k, value[k]]));
}
function escapeHTML(text) {
  return String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));
}
function formatTooltip(value) {
  const ordered = tooltipOrder(value);
  if (typeof ordered !== "object") return escapeHTML(ordered);
  return "<table>" + Object.entries(ordered).map(([k, v]) =>
    `<tr><td class="key">${escapeHTML(k)}</td><td class="value">${escapeHTML(v)}</td></tr>`).join("") + "</table>";
}
async function draw(name) {
  const spec = structuredClone(DATA.specs[log && DATA.specs[name + "-log"] ? name + "-log" : name]);
  spec.datasets = {[name]: structuredClone(DATA.data[name])};
  spec.params = spec.params.map(p => p.name === "shown" ? {...p, value: shown.slice()} : p);
  if (views[name]) views[name].finalize();
  const result = await vegaEmbed("#chart-" + name, spec, {actions: false, renderer: "svg", logLevel: 1,
    tooltip: {theme: "light", formatTooltip}});
  views[name] = result.view;
}
async function apply() {
  for (const b of document.querySelectorAll("button[data-series]"))
    b.setAttribute("aria-pressed", String(shown.includes(b.dataset.series)));
  for (const view of Object.values(views)) { view.signal("shown", shown.slice()); await view.runAsync(); }
}
for (const b of document.querySelectorAll("button[data-series]")) {
  b.addEventListener("click", event => {
    const name = b.dataset.series;
    if (event.shiftKey || event.altKey) shown = [name];
    else shown = shown.includes(name) ? shown.filter(n => n !== name) : names.filter(n => n === name || shown.includes(n));
    apply();
  });
}
document.getElementById("show-all").addEventListener("click", () => { shown = names.slice(); apply(); });
document.getElementById("log-scale").addEventListener("click", async event => {
  log = !log;
  event.currentTarget.setAttribute("aria-pressed", String(log));
  await Promise.all(["loss", "accuracy"].map(draw));
});
window.report = {views, ready: Promise.all(["loss", "accuracy", "final"].map(draw))};
