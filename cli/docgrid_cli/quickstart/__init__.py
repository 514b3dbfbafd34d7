"""The quickstart: sample documents through a whole local stack, with a worker killed on the way.

`story` is the order of things, `kill` picks and kills the worker, `onlooker` tells what happens to the jobs,
`proof` says whether everything held.
"""
