import sys

from swing_gp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
