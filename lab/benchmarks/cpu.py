"""Measure our CPU engine against pydensecrf2: ``python -m lab.benchmarks.cpu --help``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, Python looks for modules in this folder, and not where the package lies.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from lab.benchmarks.command import main

    main()
