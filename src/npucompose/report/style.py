"""How report pages look: readable at 400 pixels and at 1280, in the light and in the dark."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5d6778; --paper: #ffffff; --card: #f4f6f9; --rule: #d5dbe4;
  --c0: #2f6fde; --c1: #d9822b; --c2: #2a9d6f; --c3: #a154c7; --c4: #c8384e; --c5: #6b7a90; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --dim: #9aa5b6; --paper: #14181f; --card: #1e242e;
  --rule: #343d4b; --c0: #6ea0ff; --c1: #f0a860; --c2: #55c898; --c3: #c48ae6; --c4: #f0707f; --c5: #93a1b5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 20px 16px 60px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 22px 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 10px; }
p { margin: 8px 0; overflow-wrap: anywhere; }
header p { flex-basis: 100%; margin: 0; }
.dim, .small { color: var(--dim); }
.bad { color: var(--c4); }
.status { padding: 2px 12px; border-radius: 99px; color: #fff; background: #b3273c; font-weight: 600; }
.status.ok { background: #1d7a54; }
.status.expect_failed { background: #9a5a12; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 10px; }
.tiles div { background: var(--card); border-radius: 8px; padding: 10px 12px; }
.tiles b { display: block; font-size: 20px; }
.tiles span { color: var(--dim); font-size: 13px; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--dim); font-weight: 500; white-space: nowrap; }
td { overflow-wrap: break-word; max-width: 420px; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--c0); }
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
details > ul, div > ul { margin: 4px 0 10px; overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; } th.number { text-align: right; }
code, pre { font-family: ui-monospace, monospace; font-size: 13px; }
pre { background: var(--card); padding: 10px 12px; border-radius: 8px; overflow-x: auto; }
figure { margin: 14px 0 0; }
figcaption { color: var(--dim); font-size: 14px; }
svg { display: block; width: 100%; height: auto; margin: 8px 0; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg text.small { fill: var(--dim); font-size: 11px; }
.rule { stroke: var(--rule); } .mark { stroke: var(--ink); stroke-width: 1.5; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 8px 0; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.c0 { fill: var(--c0); background: var(--c0); } .c1 { fill: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); background: var(--c2); } .c3 { fill: var(--c3); background: var(--c3); }
.c4 { fill: var(--c4); background: var(--c4); } .c5 { fill: var(--c5); background: var(--c5); }
.kernel { stroke: var(--paper); stroke-width: .5; } .event { stroke: var(--ink); stroke-width: 1; opacity: .55; }
.curve { fill: var(--c5); opacity: .5; }
.tiles.wide { grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); }
.tiles ul { margin: 6px 0 0; padding-left: 18px; font-size: 13px; overflow-wrap: anywhere; }
.chip { padding: 0 9px; border-radius: 99px; font-size: 13px; border: 1px solid var(--rule); }
.chip.ok { color: var(--c2); border-color: var(--c2); } .chip.problem { color: var(--c4); border-color: var(--c4); }
.chip.unknown { color: var(--c1); border-color: var(--c1); } .chip.skipped { color: var(--dim); }
.verdict.static { color: var(--c2); } .verdict.dynamic { color: var(--c4); }
.verdict.mixed, .verdict.unknown { color: var(--c1); }
.steps { list-style: none; padding: 0; } .steps li { margin: 10px 0; overflow-wrap: anywhere; }
.steps pre { margin: 4px 0; white-space: pre-wrap; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 18px; }
.plots figure { margin: 0; }
.dot { fill: var(--paper); stroke: var(--dim); stroke-width: 1.5; }
.dot.front { fill: var(--c0); stroke: var(--c0); }
select { font: inherit; max-width: 100%; color: inherit; background: var(--card); border: 1px solid var(--rule);
  border-radius: 6px; padding: 4px; }
label { display: block; margin: 6px 0; }
[hidden] { display: none; }
summary { cursor: pointer; color: var(--dim); }
@media (max-width: 480px) { svg text { font-size: 20px; } svg text.small { font-size: 17px; }
  .plots svg text.small { font-size: 14px; } table.prose { font-size: 13px; } th, td { padding-right: 8px; }
  table.prose td, table.prose code { overflow-wrap: anywhere; font-size: 12px; } }
"""

WIDE = "main { max-width: 1280px; } #runs td:nth-child(2) { min-width: 170px; }"
"""For tables of many columns."""
