"""serve: a service for programs, and a page for people."""

from __future__ import annotations

import argparse
import os
import re
import socket
from pathlib import Path
from typing import Any

from outscope.cli.show import say
from outscope.errors import InputError, require

_NAME = re.compile(r"[\w][\w.-]{0,63}")


def serve_arguments(serve: argparse.ArgumentParser) -> None:
    """Options of serve."""
    serve.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="folder written by fit, or NAME=FOLDER; the first is the default",
    )
    serve.add_argument("--demo", action="store_true", help="serve the corpus that ships with it")
    serve.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="port (default 8000)")
    serve.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    serve.add_argument("--keys", metavar="FILE", help="hashes of API keys; see also --new-key")
    serve.add_argument(
        "--new-key",
        metavar="NAME",
        help="make a key, add its hash to the --keys file, print the key, and stop",
    )
    serve.add_argument("--admin", action="store_true", help="with --new-key: may change models")
    serve.add_argument(
        "--latency",
        type=float,
        default=5.0,
        metavar="MS",
        help="most milliseconds to wait for other requests to score together (default 5)",
    )
    for name, default, told in (
        ("batch", 256, "most rows scored together"),
        ("queue", 8192, "most rows that may wait"),
        ("max-items", 4096, "most texts or vectors in a request"),
        ("max-body", 16 << 20, "most bytes in a body"),
        ("max-text", 100_000, "most characters in a text"),
    ):
        shown = f"{told} (default {default:,})"
        serve.add_argument(f"--{name}", type=int, default=default, metavar="N", help=shown)
    serve.add_argument(
        "--wait",
        type=float,
        default=2.0,
        metavar="S",
        help="refuse (429) what would wait longer for its turn (default 2)",
    )
    serve.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds to score (default 30)"
    )
    serve.add_argument(
        "--grace", type=int, default=30, metavar="S", help="seconds to finish when stopped"
    )
    serve.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="Host header to accept"
    )
    serve.add_argument(
        "--cors", metavar="ORIGIN", action="append", default=[], help="site that may call"
    )
    serve.add_argument("--log-texts", action="store_true", help="write texts to the log, too")


def serve(options: Any) -> None:
    """Answer requests until stopped."""
    for module in ("fastapi", "httptools", "uvicorn", "prometheus_client"):
        require(module, extra="serve")
    from outscope.serve.keys import new_key, read_keys
    from outscope.serve.running import LOOPBACK, Service
    from outscope.serve.running import serve as run

    if options.new_key is not None:
        if options.keys is None:
            raise InputError("--new-key needs --keys FILE, the file to add the key's hash to")
        print(new_key(options.keys, options.new_key, admin=options.admin))
        return
    _check(options)
    keys = read_keys(options.keys, os.environ)
    if options.host not in LOOPBACK and not keys.needed:
        say(
            "outscope: anybody who reaches this address may call, because there are no keys "
            "(see --keys)"
        )
    service = Service(_folders(options), _settings(options, LOOPBACK), keys.users, keys.admins)
    _check_address(options.host, options.port)
    say(f"outscope: http://{options.host}:{options.port}/ (the page), /docs (the routes)")
    run(
        service,
        host=options.host,
        port=options.port,
        workers=options.workers,
        grace=options.grace,
    )


def _check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be had, before anything is loaded."""
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot listen on {host} --port {port}: {why}; choose another port or address"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _check(options: Any) -> None:
    if bool(options.models) == options.demo:
        raise InputError("give the folders of one or more models, or --demo")
    if options.demo and options.workers > 1:
        raise InputError("--workers: the demo keeps what it is taught in one process; leave it out")
    for name in ("workers", "batch", "queue", "max_items", "max_body", "max_text", "timeout"):
        if not getattr(options, name) >= 1:
            raise InputError(f"{name}={getattr(options, name)}: expected at least 1")
    if not options.wait > 0:
        raise InputError(f"wait={options.wait}: expected more than 0 seconds")
    if not options.latency >= 0:
        raise InputError(f"latency={options.latency}: expected 0 or more milliseconds")
    if not 0 <= options.port <= 65535:
        raise InputError(f"port={options.port}: expected a number from 0 to 65535")


def _folders(options: Any) -> dict[str, str]:
    """Folders by name; each is read here once, so that a bad one is told at once."""
    from outscope.io.models import read_manifest

    found: dict[str, str] = {}
    for one in options.models:
        name, equals, folder = one.partition("=")
        if not equals:
            name, folder = Path(one).absolute().name, one
        if _NAME.fullmatch(name) is None:
            raise InputError(
                f"MODEL {one!r}: expected NAME=FOLDER with a name of letters, digits, . _ and -"
            )
        if name in found:
            raise InputError(f"two models are called {name!r}; tell them apart: NAME=FOLDER")
        read_manifest(folder)
        found[name] = str(Path(folder).absolute())
    return found


def _settings(options: Any, loopback: tuple[str, ...]) -> Any:
    from outscope.serve.settings import Settings

    # On loopback only our own names are answered, so that no site can reach the service by
    # giving its own name our address.
    local = (*loopback, "[::1]") if options.host in loopback else ()
    hosts = (*local, *options.allow_host)
    return Settings(
        latency=options.latency,
        batch=options.batch,
        queue=options.queue,
        wait=options.wait,
        timeout=options.timeout,
        body_bytes=options.max_body,
        items=options.max_items,
        text_length=options.max_text,
        log_texts=options.log_texts,
        hosts=tuple(host.lower() for host in hosts),
        origins=tuple(options.cors),
        open_admin=options.demo,
    )
