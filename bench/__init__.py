"""The benchmarks: what DocGrid promises about speed, measured as ratios within one run on one machine.

`python -m bench` (`make bench`) runs them. Each is a module with one class or function that measures and judges
itself against its target; `servers` and `rows` give them databases to measure on, `report` writes
`docs/benchmarks/`.
"""
