"""Turn the results of checks into a terminal summary, report.json, report.html and JUnit data.

The data flows one way. In the process that runs a test, `report_attributes.attach` puts the cell
and its verdicts on pytest's reports. On the controller, `collect.Results` makes one `CellResult`
from the reports of a test, and `json_file`, `session` and `terminal` render it. pytest's hooks
call `session.SessionReport`. `read` makes the cells again from report.json, and `page` renders
those.
"""
