"""`python -m jari`."""

from jari.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
