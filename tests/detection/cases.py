"""All cases of the suite, faults first."""

from detection import breaks, ends, falls, habits, starts
from detection.case import CONTROLS, FAULTS

CASES = (*FAULTS, *CONTROLS)
MODULES = (falls, breaks, starts, habits, ends)
