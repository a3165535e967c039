"""The command line of a gradcanary with another protocol: ``other_protocol.py PROTOCOL WORD ...``.

It stands for another version, of which the other side learns no more than this number.
"""

import sys

from gradcanary import cli, wire

if __name__ == "__main__":
    wire.PROTOCOL = int(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
