"""What every server of jari shares: hosts, limits, the queue, errors and headers; and the server of predictions."""

from jarilab.core.errors import needs


def check_installed() -> None:
    """Raises UserError where what serves is not installed."""
    needs("fastapi", "explore")
    needs("hypercorn", "explore")
    needs("prometheus_client", "explore")
