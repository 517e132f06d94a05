"""The colours and letters of the picture of a plan, by day and by night."""

from __future__ import annotations

from string import Template

COLOURS = {
    "paper": ("#ffffff", "#0f151d"),
    "ground": ("#f5f7fa", "#161e29"),
    "frame": ("#d8dfe8", "#2b3747"),
    "face": ("#ffffff", "#1f2937"),
    "edge": ("#c9d2dd", "#3a485a"),
    "ink": ("#15202e", "#edf2f8"),
    "dim": ("#55637a", "#a3b2c5"),
    "line": ("#8391a5", "#7e90a8"),
    "blue": ("#1f5fc4", "#84b4ff"),
    "blue_wash": ("#e7f0ff", "#172c4d"),
    "slate": ("#4d5c70", "#b3c1d1"),
    "amber": ("#9a5600", "#ffc069"),
    "amber_wash": ("#fff3dd", "#3a2a10"),
    "violet": ("#6b3bc9", "#c3a6ff"),
    "violet_wash": ("#f1eaff", "#2c2150"),
    "green": ("#0b7049", "#63d9a5"),
    "green_wash": ("#e1f6ec", "#10352a"),
    "teal": ("#0a6878", "#6ad3e0"),
    "teal_wash": ("#def4f6", "#0f343b"),
    "red": ("#b52a25", "#ff9a93"),
    "red_wash": ("#ffecea", "#421a1c"),
}
"""Each colour in light and in dark surroundings."""

LOOKS = {
    "source": "blue",
    "stateless": "slate",
    "async": "amber",
    "stateful": "violet",
    "terminal": "green",
    "input": "blue",
    "table": "teal",
    "intermediate": "violet",
    "output": "green",
    "dead_letter": "red",
}
"""The colour of each family of operators and each role of streams."""

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"

_FORMS = f"""
.samza-plan text {{ font-family: {SANS}; }}
.samza-plan .title {{ font-size: 22px; font-weight: 700; letter-spacing: -0.01em; }}
.samza-plan .subtitle, .samza-plan .key {{ font-size: 12px; }}
.samza-plan .stage {{ font-size: 15px; font-weight: 700; }}
.samza-plan .traits, .samza-plan .badge, .samza-plan .note {{ font-size: 11px; }}
.samza-plan .badge {{ font-weight: 600; text-anchor: middle; }}
.samza-plan .kind {{ font-size: 10px; font-weight: 700; letter-spacing: 0.08em; }}
.samza-plan .label {{ font-size: 13px; font-weight: 600; }}
.samza-plan .site, .samza-plan .id {{ font-family: {MONO}; font-size: 10.5px; }}
.samza-plan .id {{ text-anchor: end; }}
.samza-plan .line {{ fill: none; stroke-width: 1.6; }}
.samza-plan .line.lookup {{ stroke-dasharray: 2 4; stroke-linecap: round; }}
.samza-plan .line.dead {{ stroke-dasharray: 6 4; }}
.samza-plan .icon, .samza-plan .rim {{ fill: none; stroke-width: 1.4; stroke-linecap: round; stroke-linejoin: round; }}
.samza-plan .r-dead_letter .shape {{ stroke-dasharray: 5 3; }}
.samza-plan .shape {{ stroke-width: 1.5; stroke-linejoin: round; }}
"""

_TINTS = Template("""
.samza-plan .paper { fill: $paper; stroke: $frame; }
.samza-plan .ground { fill: $ground; stroke: $frame; }
.samza-plan .face { fill: $face; stroke: $edge; }
.samza-plan .pill { fill: $face; stroke: $edge; }
.samza-plan .rule { stroke: $frame; }
.samza-plan .title, .samza-plan .stage, .samza-plan .label, .samza-plan .badge { fill: $ink; }
.samza-plan .subtitle, .samza-plan .key, .samza-plan .traits, .samza-plan .site { fill: $dim; }
.samza-plan .id, .samza-plan .note { fill: $dim; }
.samza-plan .line { stroke: $line; }
.samza-plan .head { fill: $line; }
.samza-plan .line.dead { stroke: $red; }
.samza-plan .head.dead, .samza-plan .note.policy { fill: $red; }
""")


_MARKED = "\n".join(
    f".samza-plan .mark-{name} .pill {{ fill: ${colour}_wash; stroke: ${colour}; }}"
    for name, colour in {"added": "green", "changed": "amber", "dropped": "red"}.items()
)


def daylight(look: str) -> tuple[str, str, str]:
    """Return the light fill, the line and the text of a look, for pictures that other tools make.

    >>> daylight("input")
    ('#e7f0ff', '#1f5fc4', '#15202e')
    """
    fill, line, ink = COLOURS[_wash(look)], COLOURS[LOOKS[look]], COLOURS["ink"]
    return fill[0], line[0], ink[0]


def _wash(look: str) -> str:
    wash = f"{LOOKS[look]}_wash"
    return wash if wash in COLOURS else "ground"


def style(look: str) -> str:
    """Return the rules of one look, with `$name` for colours.

    >>> print(style("input").splitlines()[0])
    .samza-plan .r-input .kind, .samza-plan .r-input .bar { fill: $blue; }
    """
    colour, scope = LOOKS[look], f".samza-plan .r-{look}"
    return "\n".join(
        [
            f"{scope} .kind, {scope} .bar {{ fill: ${colour}; }}",
            f"{scope} .shape {{ fill: ${_wash(look)}; stroke: ${colour}; }}",
            f"{scope} .icon, {scope} .rim {{ stroke: ${colour}; }}",
        ]
    )


def stylesheet(marked: bool = False) -> str:
    """Return the style of the picture, which follows whether its surroundings are light or dark.

    Where it is `marked`, operators have marks that say what becomes of them.
    """
    rules = Template("\n".join([_TINTS.template + "\n".join(map(style, LOOKS)), *([_MARKED] if marked else [])]))
    light = rules.substitute({name: pair[0] for name, pair in COLOURS.items()})
    dark = rules.substitute({name: pair[1] for name, pair in COLOURS.items()})
    return f"{_FORMS}{light}\n@media (prefers-color-scheme: dark) {{{dark}\n}}\n"
