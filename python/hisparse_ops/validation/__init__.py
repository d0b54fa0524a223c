"""Validation: what a table must hold in a healthy program, checked by value; off by default.

:func:`validate` checks every op call. One module a family holds the rules, a function an op with the arguments of
the op; each says why its rules are rules.
"""

from hisparse_ops.validation import gather, invalidate, resolver, transfer, transfer_c8
from hisparse_ops.validation._switch import (
    Calls,
    check_values,
    is_validating,
    record,
    validate,
    validate_if_asked,
)
from hisparse_ops.validation._values import VALIDATORS, ValidationError
from hisparse_ops.validation.postmortem import PostMortem, PostMortemError
from hisparse_ops.validation.state import StateReport, check_state

__all__ = [
    "VALIDATORS",
    "Calls",
    "PostMortem",
    "PostMortemError",
    "StateReport",
    "ValidationError",
    "check_state",
    "check_values",
    "gather",
    "invalidate",
    "is_validating",
    "record",
    "resolver",
    "transfer",
    "transfer_c8",
    "validate",
    "validate_if_asked",
]
