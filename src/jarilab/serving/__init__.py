"""What every server of jari shares: hosts, limits, the queue, errors and headers; and the server of predictions."""

from jarilab.core.errors import import_optional


def check_installed() -> None:
    """Raises UserError where what serves is not installed."""
    import_optional("fastapi", "explore")
    import_optional("hypercorn", "explore")
    import_optional("prometheus_client", "explore")
