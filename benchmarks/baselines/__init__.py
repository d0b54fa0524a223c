"""What a user would use instead of an op, and what the machine allows at best: one module an op.

``contenders(args)`` returns them for one case. Every baseline gives the op's result; ``--refcheck`` holds all of
them against the oracle.
"""
