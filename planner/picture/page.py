"""The HTML page of a plan: its picture to zoom into, a table of each stage's operators, and the generated source."""

from __future__ import annotations

import keyword
import re
from html import escape
from string import Template

from planner.model.flow import edges, family, place, plain, role, stages, stores, stream_node, traits
from planner.model.plan import OperatorPlan, Plan, SegmentPlan, StagePlan
from planner.picture.description import headline
from planner.picture.palette import COLOURS, LOOKS, MONO, SANS

_TOKENS = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<string>[rbfu]{0,2}(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<number>\b\d[\w.]*)"
    r"|(?P<word>[^\W\d]\w*)"
)

_COLUMNS = {
    "kind": "kind",
    "what": "what",
    "id": "id",
    "site": "where",
    "store": "store",
    "policy": "on error",
    "streams": "streams",
}

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header><h1>$title</h1><p>$facts</p></header>
<section class="picture" aria-label="Picture of the plan">
<div class="zoom">
<button data-by="0.8" title="Smaller">&minus;</button>
<button data-fit title="Fit the window">fit</button>
<button data-by="1.25" title="Larger">+</button>
</div>
<div class="view" tabindex="0">
$svg
</div>
</section>
<main>
$stages
</main>
<script>$script</script>
</body>
</html>
""")

# Templates, as CSS and JavaScript are full of braces.
_STYLE = Template("""
:root { color-scheme: light dark; $light }
@media (prefers-color-scheme: dark) { :root { $dark } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 14px/1.5 $sans; }
header { padding: 16px 32px 10px; }
h1 { margin: 0; font-size: 24px; letter-spacing: -0.01em; }
h2 { margin: 40px 0 10px; font-size: 18px; }
h2 small { margin-left: 10px; font-size: 13px; font-weight: 400; color: var(--dim); }
p, td small { margin: 2px 0; color: var(--dim); }
.picture { position: relative; margin: 0 32px; }
.view { overflow: auto; height: calc(100vh - 112px); min-height: 320px; border: 1px solid var(--frame);
  border-radius: 14px; background: var(--paper); cursor: grab; display: flex; }
.view:active { cursor: grabbing; }
.view > svg { flex: none; margin: auto; max-width: none; display: block; }
.view .samza-plan > .paper { stroke: none; }
.zoom { position: absolute; top: 12px; right: 24px; display: flex; gap: 4px; }
.zoom button { min-width: 32px; height: 30px; border: 1px solid var(--edge); border-radius: 8px;
  background: var(--face); color: var(--ink); font: 600 13px $sans; cursor: pointer; }
main { padding: 0 32px 64px; }
.table { overflow-x: auto; border: 1px solid var(--frame); border-radius: 12px; background: var(--paper); }
table { width: 100%; min-width: 1000px; table-layout: fixed; border-collapse: collapse; }
col.kind, col.policy { width: 12%; }
col.what, col.streams { width: 20%; }
col.id { width: 16%; }
col.site, col.store { width: 10%; }
th { font-size: 11px; letter-spacing: 0.06em; text-transform: uppercase; color: var(--dim); }
th, td { padding: 8px 14px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--frame);
  overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.kind { font-weight: 600; }
td.site, td.id, pre { font: 12.5px/1.55 $mono; }
$kinds
details { margin-top: 10px; border: 1px solid var(--frame); border-radius: 12px; background: var(--paper); }
summary { padding: 8px 14px; cursor: pointer; color: var(--dim); }
pre { margin: 0; padding: 12px 0; overflow-x: auto; border-top: 1px solid var(--frame); }
pre span.row { display: block; min-height: 1.55em; padding: 0 14px; }
pre span.from { display: inline-block; width: 22ch; margin-right: 2ch; overflow: hidden; text-overflow: ellipsis;
  vertical-align: bottom; white-space: nowrap; color: var(--dim); user-select: none; }
.t-keyword { color: var(--violet); font-weight: 600; }
.t-string { color: var(--green); }
.t-number { color: var(--amber); }
.t-comment { color: var(--dim); font-style: italic; }
@media print { .zoom { display: none; } .view { height: auto; } }
""")

_SCRIPT = """
const view = document.querySelector(".view"), svg = view.querySelector("svg");
const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
let scale = 1;
function zoom(to, x = view.clientWidth / 2, y = view.clientHeight / 2) {
  const from = scale;
  scale = Math.min(4, Math.max(0.05, to));
  const [left, top] = [(view.scrollLeft + x) * scale / from - x, (view.scrollTop + y) * scale / from - y];
  svg.setAttribute("width", width * scale);
  svg.setAttribute("height", height * scale);
  view.scrollTo(left, top);
}
const fit = () => zoom(Math.min(1, view.clientWidth / width, view.clientHeight / height));
document.querySelector(".zoom").onclick = ({target}) => {
  if (target.dataset.by) zoom(scale * target.dataset.by);
  else if ("fit" in target.dataset) fit();
};
view.addEventListener("wheel", event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const box = view.getBoundingClientRect();
  zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
}, {passive: false});
view.onpointermove = event => {
  if (event.buttons === 1 && event.pointerType === "mouse") view.scrollBy(-event.movementX, -event.movementY);
};
view.onkeydown = ({key}) => key === "+" ? zoom(scale * 1.25) : key === "-" ? zoom(scale * 0.8) : key === "0" && fit();
addEventListener("resize", fit);
fit();
"""


def page(plan: Plan, svg: str) -> str:
    """Return the page around the picture of a plan."""
    title, _, facts = headline(plan).partition(" · ")
    return _PAGE.substitute(
        title=escape(title),
        facts=escape(facts),
        style=_style(),
        svg=svg,
        stages="\n".join(_section(plan, stage, held) for stage, held in stages(plan)),
        script=_SCRIPT,
    )


def _style() -> str:
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in COLOURS.items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in COLOURS.items())
    kinds = "\n".join(f".r-{look} td.kind {{ color: var(--{colour}); }}" for look, colour in LOOKS.items())
    return _STYLE.substitute(light=light, dark=dark, sans=SANS, mono=MONO, kinds=kinds)


def _section(plan: Plan, stage: StagePlan, operators: list[OperatorPlan]) -> str:
    rows = "\n".join(_row(plan, operator) for operator in operators)
    columns = "".join(f'<col class="{name}">' for name in _COLUMNS)
    heads = "".join(f"<th>{head}</th>" for head in _COLUMNS.values())
    sources = "\n".join(_source(segment) for segment in stage.segments if segment.source)
    return (
        f"<h2>{_shown(stage.id)}<small>{_shown(' · '.join(traits(stage)))}</small></h2>\n"
        f'<div class="table"><table>{columns}<tr>{heads}</tr>\n{rows}\n</table></div>\n{sources}'
    )


def _row(plan: Plan, operator: OperatorPlan) -> str:
    near = {node for edge in edges(plan) if operator.id in edge for node in edge}
    streams = [f"{one.name} ({role(one)})" for one in plan.streams if stream_node(one.name) in near]
    kept, kind = ", ".join(stores(plan, operator)), operator.kind.replace("_", " ")
    order = f"by order of arrival: {operator.by_order}" if operator.by_order else ""
    what = " · ".join(words for words in (operator.label, order) if words)
    cells = (kind, what, operator.id, place(operator.site), kept, operator.on_error, ", ".join(streams))
    inner = "".join(f'<td class="{name}">{_shown(words)}</td>' for name, words in zip(_COLUMNS, cells, strict=True))
    return f'<tr class="r-{family(operator)}">{inner}</tr>'


def _shown(words: str) -> str:
    """Return words for HTML, isolated from the direction of writing of what is around them."""
    return f"<bdi>{escape(plain(words))}</bdi>" if words else ""


def _source(segment: SegmentPlan) -> str:
    """Return the source of a segment to unfold; each line says which operator it is from, where that changes."""
    rows = []
    before = ""
    for number, line in enumerate(highlighted(segment.source).split("\n")):
        operator = segment.lines[number] if number < len(segment.lines) else ""
        shown = plain(operator) if operator != before else ""
        origin = f'<span class="from" title="{escape(plain(operator))}">{escape(shown)}</span>'
        rows.append(f'<span class="row">{origin}{line}</span>')
        before = operator
    return (
        f"<details><summary>Python source below {_shown(segment.entry)}</summary><pre>{''.join(rows)}</pre></details>"
    )


def highlighted(source: str) -> str:
    """Return Python source as HTML, with its keywords, strings, numbers and comments marked.

    >>> highlighted("if a < 1:")
    '<span class="t-keyword">if</span> a &lt; <span class="t-number">1</span>:'
    """
    parts: list[str] = []
    end = 0
    for match in _TOKENS.finditer(source):
        parts.append(escape(source[end : match.start()]))
        parts.append(_marked(match))
        end = match.end()
    return "".join([*parts, escape(source[end:])])


def _marked(match: re.Match[str]) -> str:
    look = match.lastgroup
    if look == "word":
        look = "keyword" if keyword.iskeyword(match[0]) else None
    lines = [escape(line) for line in match[0].split("\n")]
    return "\n".join(f'<span class="t-{look}">{line}</span>' if look else line for line in lines)
