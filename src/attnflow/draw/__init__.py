"""House style and shared plots.

A figure is a function of a dataset, decorated with `styled`, that returns a matplotlib `Figure`.
`over_time` draws curves below the names of the stages, `new`, `curve`, `timeline` and `legend` are
its parts, `tokens` says how tokens look, and `save` writes a figure. matplotlib is imported when
the first figure is drawn.
"""

from attnflow.draw.bands import TIME, numbered, timeline
from attnflow.draw.curves import MOST_NAMED, Look, curve, thinned, token, tokens
from attnflow.draw.files import caption, save, svg, svg_text, write_figures
from attnflow.draw.plots import Panel, each, heat, note, over_time, plain, star, ticks
from attnflow.draw.scales import log_scale, log_y, plain_log_ticks
from attnflow.draw.style import (
    BANDS,
    COLOURS,
    GREY,
    LINES,
    SMALL,
    Figures,
    bound,
    legend,
    new,
    of_config,
    style,
    styled,
    title,
)
from attnflow.draw.sweep import against_parameter, over_seeds

__all__ = [
    "BANDS",
    "COLOURS",
    "GREY",
    "LINES",
    "MOST_NAMED",
    "SMALL",
    "TIME",
    "Figures",
    "Look",
    "Panel",
    "against_parameter",
    "bound",
    "caption",
    "curve",
    "each",
    "heat",
    "legend",
    "log_scale",
    "log_y",
    "new",
    "note",
    "numbered",
    "of_config",
    "over_seeds",
    "over_time",
    "plain",
    "plain_log_ticks",
    "save",
    "star",
    "style",
    "styled",
    "svg",
    "svg_text",
    "thinned",
    "ticks",
    "timeline",
    "title",
    "token",
    "tokens",
    "write_figures",
]
