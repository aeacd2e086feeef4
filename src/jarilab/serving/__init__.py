"""HTTP servers: hosts, limits, queue, errors and headers, and the prediction server."""

from jarilab.core.errors import import_optional


def check_installed() -> None:
    """Raises UserError if a package for serving is not installed."""
    import_optional("fastapi", "explore")
    import_optional("hypercorn", "explore")
    import_optional("prometheus_client", "explore")
