"""A convolution derived by hand."""

import einnet_explore as ee
from einnet_explore.session.session import Session

PHI = {"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"}


def by_hand(session: Session) -> Session:
    """From a convolution to a matrix product and an eOperator: E1 to E7."""
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply("variable_substitution", at="Y.0", phi=PHI)
    for match in ee.clean(session.program)[0]:
        session.apply(match)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.apply("eoperator_generation", at="Y")
    return session
