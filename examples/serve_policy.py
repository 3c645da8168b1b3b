"""Serve an exported policy over HTTP without rollax.

    rollax export RUN --to jax --output policy
    python examples/serve_policy.py policy 8000
    curl -d '{"observation": [[0.0, 0.1, 0.0, -0.1]]}' http://127.0.0.1:8000

A request contains the inputs in policy.json as lists with one row per environment, and the response
contains the outputs. A recurrent policy returns its memory as "next_carry/0" and so on. Send it
back as "carry/0" and so on with the next observation. A request without memory starts a new
episode.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import numpy as np
from jax import export

folder = Path(sys.argv[1])
description = json.loads((folder / "policy.json").read_text())
act = jax.jit(export.deserialize(bytearray((folder / "policy.jax").read_bytes())).call)


def inputs_of(request: dict) -> dict[str, np.ndarray]:
    """Convert a request to arrays with the shapes and dtypes of the inputs.

    Raises:
        ValueError: If an input is missing or has the wrong shape.
    """
    rows = len(next(iter(request.values())))
    has_memory = any(name.startswith("carry/") for name in request)
    absent = {
        "reset": np.full(rows, not has_memory),
        "key": np.random.default_rng().integers(2**32, size=(rows, 2)),
    }
    inputs = {}
    for one in description["inputs"]:
        shape = [rows if side == "batch" else side for side in one["shape"]]
        value = request.get(
            one["name"],
            absent.get(one["name"], np.zeros(shape) if one["name"].startswith("carry/") else None),
        )
        if value is None or np.shape(value) != tuple(shape):
            raise ValueError(f"{one['name']} must have the shape {shape}")
        inputs[one["name"]] = np.asarray(value).astype(one["dtype"])
    return inputs


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, answer = (
                200,
                {name: np.asarray(x).tolist() for name, x in act(inputs_of(request)).items()},
            )
        except (ValueError, TypeError, AttributeError, StopIteration) as error:
            code, answer = 400, {"error": str(error)}
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    server = ThreadingHTTPServer(
        ("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler
    )
    print(
        f"serving {description['environment']} on http://127.0.0.1:{server.server_port}", flush=True
    )
    server.serve_forever()
