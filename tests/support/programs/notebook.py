"""A notebook without its browser: each line of stdin is a cell, as JSON, run by a real IPython shell in ``__main__``.

Answers each cell with a line: the error that it ended with, or an empty one. Cells print to stderr.
"""

import json
import sys
import warnings

from IPython.core.interactiveshell import InteractiveShell


def main() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.argv = ["notebook"]
    shell = InteractiveShell.instance(user_module=sys.modules["__main__"])
    shell.history_manager.enabled = False
    for line in sys.stdin:
        result = shell.run_cell(json.loads(line))
        error = result.error_before_exec or result.error_in_exec
        print("" if error is None else repr(error), file=answers, flush=True)


if __name__ == "__main__":
    main()
