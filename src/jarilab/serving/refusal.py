"""Why a server does not answer; `answers` makes a response of it."""


class Refusal(Exception):  # noqa: N818 - what is refused is no fault of the server
    """Why a request is not answered. retry_after: in how many seconds to ask again."""

    def __init__(self, status: int, text: str, retry_after: int | None = None):
        super().__init__(text)
        self.status, self.text, self.retry_after = status, text, retry_after
