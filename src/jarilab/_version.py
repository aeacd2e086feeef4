"""The version, for the package, its metadata and the record of every run."""

__version__ = "0.1.0"
