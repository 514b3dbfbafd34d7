"""The benchmarks: what DocGrid promises about speed, measured as ratios within one run on one machine.

`make bench` (`PYTHONPATH=tests python -m bench`) runs them: the operator's take the tests' control plane. Each is
a module with one class or function that measures and judges itself against its target; `servers` and `rows` give
them databases to measure on, `operator_release` a control plane with an operator, `report` writes
`docs/benchmarks/`.
"""
