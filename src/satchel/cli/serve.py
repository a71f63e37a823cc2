"""`satchel serve`: models over HTTP."""

from __future__ import annotations

import argparse
from functools import partial

import satchel
from satchel.base.errors import UnsupportedError
from satchel.cli.flags import cache_options
from satchel.cli.tune import first_use
from satchel.files.caches import default_kv_bytes
from satchel.files.store import resolve


def serve(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    try:
        from satchel.serve import run
        from satchel.serve.journal import Journal
        from satchel.serve.settings import Settings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UnsupportedError(
            "serving needs more packages: pip install 'satchel[serve]'"
        ) from None
    settings = Settings(
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        insecure=args.insecure,
        cors_origins=tuple(args.cors_origin),
        log_json=args.log_json,
        max_requests=args.max_requests,
        max_loaded=args.max_loaded,
        keep_alive_s=None if args.keep_alive < 0 else args.keep_alive,
        pooling=args.pooling,
        grace_s=args.grace,
    )
    load = partial(
        satchel.load,
        context=args.ctx_size,
        threads=args.threads,
        parallel=args.parallel,
        **cache_options(args),
        disk_cache=default_kv_bytes() if args.disk_cache is None else args.disk_cache,
    )
    if args.models and args.threads is None:
        path = resolve(args.models[0])
        if said := first_use(None, path, args.models[0]):
            Journal(args.log_json).write("tuned", said=said)
    return run.serve(args.models, settings, load)
