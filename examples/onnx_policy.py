"""Run an exported ONNX policy without rollax and without JAX.

    rollax export RUN --to onnx --output policy
    python examples/onnx_policy.py policy

The policy receives random observations of four environments for ten steps. The memory of a
recurrent policy is passed from step to step.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder, environments = Path(sys.argv[1]), 4
description = json.loads((folder / "policy.json").read_text())
session = onnxruntime.InferenceSession(folder / "policy.onnx", providers=["CPUExecutionProvider"])
names = [one["name"] for one in description["outputs"]]
random = np.random.default_rng(0)


def made_up(one: dict) -> np.ndarray:
    """Return random numbers with the shape and dtype of an input. The input "reset" is false."""
    shape = [environments if side == "batch" else side for side in one["shape"]]
    return (
        random.random(shape).astype(one["dtype"])
        if one["name"] != "reset"
        else np.zeros(shape, bool)
    )


inputs = {one["name"]: made_up(one) for one in description["inputs"]}
if "reset" in inputs:
    inputs["reset"][:] = True  # start of an episode: the policy ignores the carry
for step in range(10):
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    print(f"step {step}: actions {outputs['action'].tolist()}")
    inputs = {one["name"]: made_up(one) for one in description["inputs"]}
    inputs |= {
        name.removeprefix("next_"): memory
        for name, memory in outputs.items()
        if name.startswith("next_")
    }
