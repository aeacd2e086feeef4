"""What every server of jari shares: hosts, limits, the queue, errors and headers; and the server of predictions."""
