"""Every sample through Triton's interpreter, against its oracle: prints one JSON object a line."""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from hisparse_ops import reference, triton
from hisparse_ops.testing import interpreter, samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args


def main() -> int:
    tier, *ops = sys.argv[1:]
    for op in ops or triton.OPS:
        for sample in samples.samples(op, tier):
            args = sample.args()
            expected = clone_args(args)
            reference.load(op)(**expected)
            line = {"op": op, "sample": sample.name}
            try:
                interpreter.call(op, args)
                assert_same_buffers(args, expected, samples.device_masks(op, expected))
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
