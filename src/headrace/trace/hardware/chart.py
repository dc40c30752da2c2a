"""A study as a page of its own: tables and bars drawn as SVG, no scripts, nothing fetched."""

from html import escape

from headrace.trace.hardware.study import Study

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d", "#ff9da6", "#79706e")
GREY = "#888"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 240, 56, 28, 12
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 2rem; color: #222; max-width: 960px }}
figure {{ display: inline-block; margin: 0 1.5rem 1.5rem 0 }} figcaption {{ font-weight: 600 }}
svg text {{ font: 11px system-ui, sans-serif; fill: #444 }} code {{ background: #f3f3f3; padding: 0 .3em }}
ul.key {{ list-style: none; padding: 0 }} ul.key li {{ display: inline-block; margin-right: 1.2em }}
ul.key i {{ display: inline-block; width: .8em; height: .8em; margin-right: .4em }}
</style></head><body><h1>{title}</h1><p><code>{command}</code></p>
{body}
</body></html>
"""


def page(found: Study, command: str) -> str:
    """The whole page."""
    names = found.names
    key = "".join(f'<li><i style="background:{_colour(at)}"></i>{escape(name)}</li>' for at, name in enumerate(names))
    loading: dict[str, list[float | None]] = {"loading": [run.loading for run in found.runs]}
    figures = [figure(found, "Elapsed seconds of loading", loading, stacked=True)]
    figures.append(figure(found, "CPU seconds by operation", found.cpu, stacked=True))
    figures += [figure(found, name, found.measure(name), stacked=False) for name in found.measures]
    notes = "".join(f"<p>{escape(note)}</p>" for note in found.notes)
    body = f'<ul class="key">{key}</ul>{"".join(figures)}{notes}'
    return _PAGE.format(title="Number of workers", command=escape(command), body=body)


def figure(found: Study, title: str, values: dict[str, list[float | None]], *, stacked: bool) -> str:
    """Bars for each number of workers: on top of each other, or side by side."""
    runs = [run.workers for run in found.runs]
    columns = [[row[at] or 0.0 for row in values.values()] for at in range(len(runs))]
    top = max((sum(column) if stacked else max(column, default=0.0) for column in columns), default=0.0) or 1.0
    step = (WIDTH - LEFT) / max(len(runs), 1)
    height = HEIGHT - TOP - BOTTOM
    shapes = []
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + height * (1 - mark)
        shapes += [
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * mark:.3g}</text>',
        ]
    for at, column in enumerate(columns):
        room = step * 0.7
        left, base = LEFT + at * step + step * 0.15, float(TOP + height)
        width = room if stacked else room / max(len(column), 1)
        for number, (name, value) in enumerate(zip(values, column, strict=True)):
            size = value / top * height
            x, y = (left, base - size) if stacked else (left + number * width, TOP + height - size)
            base = y if stacked else base
            colour = _colour(number) if len(column) > 1 else GREY
            shapes.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{size:.1f}" fill="{colour}">'
                f"<title>{escape(name)}, {runs[at]} workers: {value:.4g}</title></rect>"
            )
        middle = LEFT + (at + 0.5) * step
        shapes.append(f'<text x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{runs[at]}</text>')
    drawing = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(shapes)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]
