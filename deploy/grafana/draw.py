#!/usr/bin/env python3
"""Draws the dashboard's panels from what a Prometheus holds, for those who have no Grafana at hand. Needs matplotlib.

    deploy/grafana/draw.py --prometheus http://127.0.0.1:9090 [--minutes 15] --out sluice.png
"""
import argparse
import json
import math
import pathlib
import re
import time
import urllib.parse
import urllib.request

DASHBOARD = pathlib.Path(__file__).resolve().parent / "sluice.json"
UNIT_PIXELS, COLUMN_PIXELS = 24, 66  # of Grafana's grid: 24 columns, rows of one unit
BACKGROUND, PANEL, BORDER, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e8e99"
SERIES = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#8ab8ff", "#f2495c", "#96d98d", "#ffcb7d", "#ca95e5", "#37872d", "#e0b400"]
LINES_MAX = 9
NAMED = {"green": "#56a64b", "orange": "#ff780a", "red": "#e02f44"}


def expand(query, variables):
    """The query with the dashboard's variables filled in."""
    return re.sub(r"\$(\w+)", lambda match: variables[match.group(1)], query)


def variables_of(rate_interval):
    return {"cluster": ".*", "role": ".*", "instance": ".*", "__rate_interval": rate_interval}


def query_range(prometheus, query, start, end, step):
    """[(labels, [(time, value)])], without what is no number."""
    form = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{form}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    series = [(one["metric"], [(t, float(v)) for t, v in one["values"] if math.isfinite(float(v))]) for one in result]
    return [(labels, points) for labels, points in series if points]


def legend_of(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match.group(1), ""), template)


def scaled(value, base, units):
    index = 0
    while abs(value) >= base and index < len(units) - 1:
        value, index = value / base, index + 1
    return value, units[index]


def format_value(value, unit, decimals=None):
    digits = (lambda v: f"{v:.{decimals}f}") if decimals is not None else (lambda v: f"{v:.3g}")
    if unit == "percentunit":
        return f"{100 * value:.{decimals if decimals is not None else 0}f}%"
    if unit == "s":
        for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (math.inf, 1 / 60, "min")):
            if abs(value) < limit and value != 0:
                return f"{value * factor:.3g} {name}"
        return "0 s"
    if unit in ("bytes", "Bps"):
        number, prefix = scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"])
        return f"{number:.3g} {prefix}" + ("/s" if unit == "Bps" else "")
    number, prefix = scaled(value, 1000, ["", "K", "M", "G"])
    return digits(number) + prefix + {"reqps": " req/s", "ops": "/s"}.get(unit, "")


def color_of(value, steps):
    return NAMED[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


class Canvas:
    """Places panels as Grafana's grid does."""

    def __init__(self, panels):
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
        pyplot.rcParams.update({"font.family": "DejaVu Sans", "font.size": 7, "text.color": TEXT, "axes.edgecolor": BORDER,
                                "axes.labelcolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT})
        self.height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) * UNIT_PIXELS
        self.width = 24 * COLUMN_PIXELS
        self.figure = pyplot.figure(figsize=(self.width / 100, self.height / 100), dpi=100, facecolor=BACKGROUND)

    def axes(self, position, left=0, top=0, right=0, bottom=0):
        """Axes over a grid position less margins in pixels."""
        x, w = position["x"] * COLUMN_PIXELS + left, position["w"] * COLUMN_PIXELS - left - right
        y, h = position["y"] * UNIT_PIXELS + top, position["h"] * UNIT_PIXELS - top - bottom
        return self.figure.add_axes([x / self.width, 1 - (y + h) / self.height, w / self.width, h / self.height])

    def frame(self, position, color=PANEL):
        axes = self.axes(position, 3, 3, 3, 3)
        axes.set(xticks=[], yticks=[], facecolor=color)
        return axes

    def save(self, path):
        import io

        from PIL import Image
        raw = io.BytesIO()
        self.figure.savefig(raw, facecolor=BACKGROUND)
        # A palette is enough for flat panels, and a third of the bytes.
        Image.open(raw).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


def draw_row(canvas, panel):
    axes = canvas.axes(panel["gridPos"])
    axes.axis("off")
    axes.text(0.004, 0.4, f"▾ {panel['title']}", fontsize=9.5, weight="bold", va="center")


def draw_stat(canvas, panel, results):
    defaults = panel["fieldConfig"]["defaults"]
    points = results[0][1][0][1] if results and results[0][1] else []
    last = points[-1][1] if points else None
    axes = canvas.frame(panel["gridPos"], PANEL if last is None else color_of(last, defaults["thresholds"]["steps"]))
    if points and max(v for _, v in points) > min(v for _, v in points):
        spark = canvas.axes(panel["gridPos"], 3, 55, 3, 3)
        spark.fill_between([t for t, _ in points], [v for _, v in points], min(v for _, v in points), color="white", alpha=0.22, lw=0)
        spark.axis("off")
        spark.margins(0)
    axes.text(0.04, 0.86, panel["title"], fontsize=8, transform=axes.transAxes, va="center", color="white")
    text = "no data" if last is None else format_value(last, defaults["unit"], defaults.get("decimals"))
    axes.text(0.5, 0.45, text, fontsize=19, weight="bold", transform=axes.transAxes, ha="center", va="center", color="white")


def draw_timeseries(canvas, panel, results, start, end):
    from matplotlib.ticker import FuncFormatter, MaxNLocator
    position, defaults = panel["gridPos"], panel["fieldConfig"]["defaults"]
    frame = canvas.frame(position)
    frame.text(0.015, 0.955, panel["title"], fontsize=8, weight="bold", transform=frame.transAxes, va="center")
    axes = canvas.axes(position, 58, 28, 14, 58)
    axes.set_facecolor(PANEL)
    lines = [(legend_of(target["legendFormat"], labels) or "all", points) for target, series in results for labels, points in series]
    if len(lines) > LINES_MAX:  # a table in Grafana, sorted like this
        lines = sorted(lines, key=lambda line: -max(value for _, value in line[1]))[:LINES_MAX]
    if "stacking" in defaults["custom"] and lines:
        times = sorted({t for _, points in lines for t, _ in points})
        values = [[dict(points).get(t, 0) for t in times] for _, points in lines]
        axes.stackplot(times, values, colors=SERIES, alpha=0.55, lw=0)
    else:
        for (_, points), color in zip(lines, SERIES):
            axes.plot([t for t, _ in points], [v for _, v in points], color=color, lw=1.1)
            axes.fill_between([t for t, _ in points], [v for _, v in points], 0, color=color, alpha=0.06, lw=0)
    if not lines:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT, transform=axes.transAxes)
    top = max([v for _, points in lines for _, v in points] or [0])
    axes.set_xlim(start, end)
    axes.set_ylim(0, axes.get_ylim()[1] if top > 0 else 1)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, defaults["unit"])))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time.strftime("%H:%M:%S", time.gmtime(value))))
    axes.grid(color=BORDER, lw=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    draw_legend(frame, [name for name, _ in lines], position["w"] * COLUMN_PIXELS)


def draw_legend(frame, names, width):
    """Two lines of coloured names under the axes; what does not fit is left out."""
    x, y = 12, 0.135
    for name, color in zip(names, SERIES):
        needed = 24 + sum(6.9 if c.isupper() else 5.5 for c in name)
        if x + needed > width:
            x, y = 12, y - 0.07
            if y < 0.05:
                break
        frame.plot([x / width, (x + 10) / width], [y, y], color=color, lw=2, transform=frame.transAxes, clip_on=False)
        frame.text((x + 14) / width, y, name, fontsize=6.8, color=FAINT, transform=frame.transAxes, va="center")
        x += needed


def draw(prometheus, start, end, rate_interval, out, dashboard=DASHBOARD):
    """Writes a PNG of all panels between two times."""
    panels = json.loads(pathlib.Path(dashboard).read_text())["panels"]
    canvas, step = Canvas(panels), max(1, round((end - start) / 240))
    for panel in panels:
        if panel["type"] == "row":
            draw_row(canvas, panel)
            continue
        results = [(target, query_range(prometheus, expand(target["expr"], variables_of(rate_interval)), start, end, step))
                   for target in panel["targets"]]
        if panel["type"] == "stat":
            draw_stat(canvas, panel, results)
        else:
            draw_timeseries(canvas, panel, results, start, end)
    canvas.save(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--rate-interval", default="30s")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    end = time.time()
    draw(arguments.prometheus, end - 60 * arguments.minutes, end, arguments.rate_interval, arguments.out)


if __name__ == "__main__":
    main()
