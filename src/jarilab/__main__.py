"""`python -m jarilab`."""

from jarilab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
