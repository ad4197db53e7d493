"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .bands import numbered as numbered, timeline as timeline
from .clock import (
    TIME as TIME,
    in_steps as in_steps,
    moment as moment,
    time_name as time_name,
    time_ticks as time_ticks,
)
from .curves import (
    Look as Look,
    MOST_NAMED as MOST_NAMED,
    curve as curve,
    thinned as thinned,
    token as token,
    tokens as tokens,
)
from .files import (
    caption as caption,
    save as save,
    svg as svg,
    svg_text as svg_text,
    write_figures as write_figures,
)
from .plots import (
    Panel as Panel,
    each as each,
    heat as heat,
    note as note,
    over_time as over_time,
    plain as plain,
    star as star,
    ticks as ticks,
)
from .scales import log_scale as log_scale, log_y as log_y, plain_log_ticks as plain_log_ticks
from .story import Story as Story, told as told
from .style import (
    BANDS as BANDS,
    COLOURS as COLOURS,
    Figures as Figures,
    GREY as GREY,
    LINES as LINES,
    SMALL as SMALL,
    bound as bound,
    legend as legend,
    new as new,
    of_config as of_config,
    shows as shows,
    style as style,
    styled as styled,
    title as title,
)
from .sweep import against_parameter as against_parameter, over_seeds as over_seeds
