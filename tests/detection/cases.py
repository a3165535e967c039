"""All cases of the suite, faults first."""

from detection import breaks, ends, falls, habits, plans, starts, updates
from detection.case import CONTROLS, FAULTS

CASES = (*FAULTS, *CONTROLS)
MODULES = (falls, breaks, updates, starts, habits, ends, plans)
