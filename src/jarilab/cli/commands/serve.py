"""Serve predictions of a run over HTTP, as JSON or server-sent events."""

from __future__ import annotations

import argparse

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_listening, add_run, add_shared


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.core.options import options_of
    from jarilab.serving.requests import Serving

    add_run(parser)
    add_listening(parser)
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="further host name that requests may use, such as model.example.org; repeat the flag for more",
    )
    parser.add_options("verb", options_of(api.predict), without=("at_once",))
    parser.add_options("limits", options_of(Serving))
    add_shared(parser, "threads")


def run(options: argparse.Namespace) -> None:
    from jarilab import api, serving

    serving.check_installed()
    from jarilab.serving import run_server
    from jarilab.serving.application import Server
    from jarilab.serving.requests import Serving
    from jarilab.training.progress import working

    api.use_threads(options.verb.pop("threads", None))
    limits = Serving(**options.limits)
    with working(f"opening {options.run}"):
        server = Server(api.open_run(options.run, **options.verb), limits)
    listening = run_server.listen(options.host, options.port)
    address, hosts = run_server.address_of(listening), run_server.hosts_of(listening, options.name)
    print(f"{address}    answers POST {address}predict; Ctrl-C ends it", flush=True)
    application = server.application(hosts)
    run_server.run(application, listening, server.queue, grace=limits.grace)
