"""Grids of runs: `covey compare` and `covey sweep`.

A grid is a list of cells, each a short run of one setting. Cells run in processes of their own and
are saved one by one, so that a grid can be killed at any time and resumed. Only the commands import
typer and rich, and pictures are imported when they are drawn, so that these processes start
quickly.
"""
