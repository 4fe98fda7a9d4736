"""`python -m twinkle.hub get ID`: finds a model."""

import sys

from twinkle.hub import main

if __name__ == "__main__":
    sys.exit(main())
