"""Every transaction of the protocol, one module for each step of a job's life.

A function decorated with `transactional` is one unit of work: committed whole, with its event, or not at all.
Lock order is always Job → Version → Document; every row lock is FOR NO KEY UPDATE; time is the database's, read
once, after the job's lock is held. docs/design explains each transaction.
"""
