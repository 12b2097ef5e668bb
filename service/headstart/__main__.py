"""`python -m headstart` is the same as the console script."""

from headstart.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
