"""Runs compared on one page: curves, bytes, the time of a step, layers, settings.

`write_report` writes an HTML page that needs no network, `write_figure` a picture for a README. Both read runs through
`RunRecord`, which `terngrad.train.Run` satisfies. `write_chart` draws curves that are no runs, `write_examination` a
page of what `terngrad doctor` found.
"""

from terngrad.report.chart import write_chart
from terngrad.report.examination import write_examination
from terngrad.report.page import write_report
from terngrad.report.picture import write_figure
from terngrad.report.records import RunRecord

__all__ = ["RunRecord", "write_chart", "write_examination", "write_figure", "write_report"]
