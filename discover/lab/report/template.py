# ruff: noqa: E501 (markup, style and script read better unbroken)
"""The page's markup, style and script. Kept apart from :mod:`discover.lab.report.page`, which fills them in."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
script-src 'unsafe-inline' 'unsafe-eval'">
<link rel="icon" href="data:,">
<title>$title · Discover</title>
<style>$style</style>
</head>
<body>
<header>
  <div class="brand"><span class="mark" aria-hidden="true"><i></i><i></i><i></i></span>Discover
    <span class="tag">one momentum per cluster</span></div>
  <h1>$title</h1>
  <p class="lead">$lead</p>
  <ul class="facts">$facts</ul>
</header>
<main>
$headline
<section aria-labelledby="h-results"><h2 id="h-results">Results</h2>$table$table_note</section>
<section aria-labelledby="h-curves"><h2 id="h-curves">Curves</h2>$curves</section>
$variance
$grid
<section aria-labelledby="h-details"><h2 id="h-details">Details</h2>$details</section>
</main>
<footer>$footer</footer>
$scripts
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; --ink: #111827; --soft: #4b5563; --faint: #6b7280; --line: #e5e7eb; --paper: #ffffff;
  --ground: #f6f7f9; --accent: #b84f00; --accent-soft: #fff3ea;
  font-family: Inter, system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font-size: 15px; line-height: 1.55; }
header, main, footer { max-width: 1120px; margin: 0 auto; padding: 0 28px; }
header { padding-top: 40px; }
.brand { display: flex; align-items: center; gap: 10px; font-weight: 650; letter-spacing: -.01em; }
.brand .tag { font-weight: 400; color: var(--faint); }
.mark { display: inline-grid; grid-template-columns: repeat(3, 6px); gap: 3px; align-items: end; height: 18px; }
.mark i { background: #d55e00; border-radius: 2px; height: 8px; }
.mark i:nth-child(2) { background: #0072b2; height: 13px; } .mark i:nth-child(3) { background: #009e73; height: 18px; }
h1 { font-size: 34px; line-height: 1.15; letter-spacing: -.022em; margin: 26px 0 8px; font-weight: 700; }
h2 { font-size: 19px; letter-spacing: -.012em; margin: 0 0 16px; font-weight: 650; }
h3 { font-size: 15px; margin: 0 0 8px; font-weight: 650; }
.lead { color: var(--soft); font-size: 17px; margin: 0; max-width: 76ch; }
.facts { list-style: none; display: flex; flex-wrap: wrap; gap: 8px; margin: 20px 0 0; padding: 0; }
.facts li { background: var(--paper); border: 1px solid var(--line); border-radius: 99px; padding: 3px 12px;
  font-size: 13px; color: var(--soft); }
.facts b { color: var(--ink); font-weight: 600; }
main { padding-top: 28px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 14px; padding: 24px 26px;
  margin: 0 0 20px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 0 0 20px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 14px; padding: 16px 20px 14px;
  border-top: 4px solid var(--c, var(--line)); }
.card .k { color: var(--soft); font-size: 13px; } .card .s { color: var(--faint); font-size: 13px; }
.card .v { font-size: 30px; font-weight: 680; letter-spacing: -.025em; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.card .v small { font-size: 16px; font-weight: 500; color: var(--soft); letter-spacing: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 550; font-size: 12.5px; color: var(--faint); padding: 0 12px 8px;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
td { text-align: right; padding: 9px 12px; border-bottom: 1px solid #f0f1f3; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 4px; }
.results td:nth-child(2), .results th:nth-child(2) { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.best td { background: var(--accent-soft); font-weight: 620; } tr.best td:first-child { border-radius: 8px 0 0 8px; }
tr.best td:last-child { border-radius: 0 8px 8px 0; }
tr.control td { color: var(--soft); border-top: 1px solid var(--line); }
.swatch { display: inline-block; vertical-align: middle; margin-right: 9px; }
.note { color: var(--faint); font-size: 13px; margin: 14px 0 0; max-width: 100ch; }
.toolbar { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 0 0 18px; }
.toolbar .gap { flex: 1; }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--paper); border: 1px solid #d5d9df;
  border-radius: 99px; padding: 4px 13px 4px 10px; cursor: pointer; display: inline-flex; align-items: center; }
button:hover { border-color: #9aa1ab; } button:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
button[aria-pressed="false"] { color: var(--faint); background: #f3f4f6; border-style: dashed; }
button[aria-pressed="false"] .swatch { opacity: .28; }
button.plain { padding: 4px 13px; } button.plain[aria-pressed="true"] { background: #111827; color: #fff;
  border-color: #111827; }
button.plain[aria-pressed="false"] { background: var(--paper); color: var(--ink); border-style: solid; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 24px 34px; }
.chart { width: 100%; min-width: 0; } .chart.wide { grid-column: 1 / -1; }
.chart .vega-embed { width: 100%; display: block; } .chart .vega-embed summary { display: none; }
figure { margin: 0; } figure img { width: 100%; height: auto; display: block; }
.heat td.cell { text-align: center; border: 3px solid var(--paper); border-radius: 8px; padding: 7px 10px; }
.heat th { text-align: center; } .heat th:first-child { text-align: left; }
.heat td.chosen { font-weight: 700; box-shadow: inset 0 0 0 2px var(--ink); }
details { border-top: 1px solid var(--line); } details:last-child { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: 11px 2px; font-weight: 600; } summary:focus-visible { outline: 2px solid #0072b2; }
.pairs { display: grid; grid-template-columns: minmax(140px, max-content) 1fr; gap: 4px 22px; margin: 0 0 16px;
  font-size: 13.5px; }
.pairs dt { color: var(--faint); } .pairs dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
pre, code { font-family: ui-monospace, "SF Mono", "JetBrains Mono", "Liberation Mono", monospace; font-size: 13px; }
pre { background: #f3f4f6; border-radius: 8px; padding: 12px 14px; overflow-x: auto; margin: 0 0 16px; }
footer { color: var(--faint); font-size: 13px; padding-top: 8px; padding-bottom: 44px; }
#vg-tooltip-element { font-family: inherit; font-size: 12.5px; border-radius: 9px; border-color: #d5d9df;
  box-shadow: 0 6px 24px rgb(17 24 39 / .14); padding: 9px 12px; }
#vg-tooltip-element table tr td { padding: 1px 4px; border: 0; } #vg-tooltip-element td.key { color: var(--soft);
  max-width: none; }
@media (max-width: 640px) { header, main, footer { padding-left: 14px; padding-right: 14px; } h1 { font-size: 27px; }
  section { padding: 18px 14px; } }
@media print { body { background: #fff; } section, .card { break-inside: avoid; } .toolbar { display: none; } }
"""

SCRIPT = """
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
"""
