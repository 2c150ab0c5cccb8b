"""What one looks at a net with: its table of layers, schedule, costs and times, drawings.

Modules are imported when they are used. `Net.summary` and `Net.schedule` are registered with the net here.
"""

from minicaffe.net import net


def _summary(made):
    from minicaffe.inspection.summary import Summary
    return Summary(made)


def _schedule(made, rows, plan):
    from minicaffe.inspection.schedule_table import Listing
    return Listing(made, rows, plan)


net.views.update(summary=_summary, schedule=_schedule)
