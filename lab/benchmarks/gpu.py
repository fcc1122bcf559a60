"""Measure the GPU engine, everything in one call: ``python -m lab.benchmarks.gpu --help``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, Python looks for modules in this folder, and not where the packages lie.
    root = Path(__file__).resolve().parents[2]
    sys.path[0:1] = [str(root), str(root / "src")]
    from lab.benchmarks.gpu_command import main

    main()
