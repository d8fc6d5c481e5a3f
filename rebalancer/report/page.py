"""The frame of all HTML pages: one self-contained file without scripts or network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root{--bg:#fff;--fg:#1c2330;--soft:#667;--line:#dde1e8;--card:#f6f8fb}
@media(prefers-color-scheme:dark){:root{--bg:#12161d;--fg:#e6e9ef;--soft:#9aa4b2;--line:#2b3340;--card:#1a202a}}
body{margin:0 auto;max-width:960px;padding:24px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 6px}p{margin:4px 0 10px}.soft{color:var(--soft)}
svg{width:100%;height:auto;background:var(--card);border-radius:8px}svg text{font-size:11px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1}.mark{stroke:#d1495b;stroke-dasharray:4 3}.line{fill:none;stroke-width:1.8}
.ring{fill:none;stroke:#e07b39;stroke-width:2}.disc{fill:#2f6fde;fill-opacity:.75}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:13px;color:var(--soft);margin:6px 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:16px 0}
.card{background:var(--card);border-radius:8px;padding:12px}.card b{display:block;font-size:22px}
.maps{display:grid;grid-template-columns:1fr 1fr;gap:12px}figure{margin:0}figcaption{font-size:13px;color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
td,th{text-align:left;padding:4px 8px;border-bottom:1px solid var(--line);vertical-align:top}td.n{white-space:nowrap}
"""


def page(title: str, body: str) -> str:
    """Wraps a body that is HTML already."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped cells."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def cards(items: Sequence[tuple[str, str]]) -> str:
    """Big numbers: (label, value)."""
    inner = "".join(f'<div class="card">{escape(label)}<b>{escape(value)}</b></div>' for label, value in items)
    return f'<div class="cards">{inner}</div>'
