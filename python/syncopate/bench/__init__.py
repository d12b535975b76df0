"""`syncopate bench`: operators against what people run today.

case.py       a problem with its inputs: what an operator, its product and its collective are called with
peers/        what they are compared with, one small file each
measure.py    how a call is timed, candidates in turn
attention.py  `syncopate bench attention`: its shapes, inputs and rows
sdpa.py       torch's attention for rows of a longer sequence
rows.py       the rows of one shape: ours, peers, and strategies to compare
table.py      columns, CSV, Markdown
picture.py    the plot
launch.py     options, ranks and tables of any bench
session.py    a run: its process group, and the report as it grows
"""
